"""mitmproxy's hooks that the plane answers, and the commands that our layers add to mitmproxy's.

The hooks are a table made once, instead of a search through all addons at each one.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, fields
from typing import Any

from mitmproxy.proxy import commands
from mitmproxy.proxy.context import Context

from coatcheck.request.exchange import Waiting

type Handler = Callable[..., Waiting]
type Hooks = dict[type[commands.StartHook], tuple[str, Handler]]


def hook_table(handlers: dict[type[commands.StartHook], Handler]) -> Hooks:
    """Each hook with the name of its one argument, found once: `Hook.args` looks it up at each call."""
    return {
        hook: (fields(hook)[0].name, handler)  # type: ignore[arg-type]  # every hook is a dataclass
        for hook, handler in handlers.items()
    }


@dataclass
class VerdictHook(commands.StartHook):
    """The verdict has to wait for the secret store. (When it need not, there is no hook: dispatching one
    costs as much as the decision.)"""

    waiting: Callable[[], Coroutine[Any, Any, None]]


class EnterTunnel(commands.Command):
    """CONNECT was allowed and answered. From the next event on the layers that read it are passed over:
    the tunnel's bytes would only go through their parsers unchanged."""

    def __init__(self, context: Context) -> None:
        self.context = context
