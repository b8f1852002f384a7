"""A guest that stands still so that it can be saved, and goes on: as it was, or as somebody else (I10)."""

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from typing import Final

from coatcheck.launcher.channel import Channel, Stream, StreamReset, fresh
from coatcheck.launcher.preparing import hostname
from coatcheck.launcher.spec import SupervisorSpec

ORDER_SECONDS: Final = 30.0
"""For the agent to do one thing: two seconds to freeze a process that waits in the kernel, a busy disk."""
MACHINE_ID_BYTES: Final = 16
"""Of /etc/machine-id (machine-id(5))."""


class AgentError(Exception):
    """A guest's agent did not do what it was told. In our words: its own could be anything."""


async def freeze(channel: Channel) -> None:
    """Commands stand still, disks are written, nothing is under way in the channel; until `thaw`.

    AgentError, ChannelBroken: it may stand half still, and is to be thawed all the same.
    """
    channel.hold_back()
    said = await _obeyed(channel.order("freeze"), "stop its commands")
    if said.get("frozen") != "yes":
        raise AgentError("the sandbox's agent did not stop its commands")
    await _obeyed(channel.order("sync"), "write its disks")


async def thaw(channel: Channel) -> None:
    """All of it goes on. AgentError, ChannelBroken: it does not, and such a sandbox is of no use."""
    stream = channel.order("thaw")
    channel.go_on()  # behind that order
    said = await _obeyed(stream, "let its commands go on")
    if said.get("frozen") != "no":
        raise AgentError("the sandbox's agent did not let its commands go on")


async def set_clock(channel: Channel) -> None:
    """One that stood still takes up the time of now, and chance that no copy of it has."""
    await _obeyed(channel.order("configure", fresh().items()), "set its clock")


async def rebind(channel: Channel, spec: SupervisorSpec) -> None:
    """A frozen copy becomes somebody of its own: generation, chance, clock, names. AgentError, ChannelBroken.

    Nothing of a user's has run in it when this returns, and nothing does before `thaw`.
    """
    person: Iterable[tuple[str, str]] = (
        ("generation", str(spec.machine.generation)),
        ("hostname", hostname(spec)),
        ("machine-id", secrets.token_hex(MACHINE_ID_BYTES)),
        *fresh().items(),
    )
    said = await _obeyed(channel.order("rebind", person), "become somebody of its own")
    if said.get("generation") != str(spec.machine.generation):
        raise AgentError("the sandbox's agent acknowledged another generation than its own")


async def _obeyed(stream: Stream, what: str) -> Mapping[str, str]:
    """What the agent said when it had done it, and has nothing more to say."""
    try:
        async with asyncio.timeout(ORDER_SECONDS), stream:
            notes = await stream.notes()
            await stream.over()
    except StreamReset:
        raise AgentError(f"the sandbox's agent could not {what}") from None
    except TimeoutError:
        raise AgentError(f"the sandbox's agent did not {what} within {ORDER_SECONDS:g} s") from None
    return {name: value for note in notes for name, value in note.fields}
