"""Time that a test moves: bounds of minutes are met at once, and no machine is too slow for them."""

import asyncio
import importlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from tests.exhaustive.fail_closed.sites import path_modules


class Clock:
    """Ahead of the machine's by what was skipped."""

    def __init__(self) -> None:
        self.skipped = 0.0

    def skip(self, seconds: float) -> None:
        self.skipped += seconds

    def monotonic(self) -> float:
        return time.monotonic() + self.skipped

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)


@contextmanager
def movable_time(loop: asyncio.AbstractEventLoop) -> Iterator[Clock]:
    """The loop's timers and the path's own look at the yielded clock. Leases keep the machine's: they must
    outlive a skip, or it would be they that end everything."""
    clock = Clock()
    modules = [importlib.import_module(f"coatcheck.{name}") for name in path_modules()]
    timed = [
        m for m in modules if vars(m).get("time") is time and not m.__name__.startswith("coatcheck.state")
    ]
    real = loop.time
    vars(loop)["time"] = lambda: real() + clock.skipped
    _set(timed, clock)
    try:
        yield clock
    finally:
        _set(timed, time)
        del vars(loop)["time"]


def _set(modules: list[ModuleType], to: object) -> None:
    for module in modules:
        vars(module)["time"] = to
