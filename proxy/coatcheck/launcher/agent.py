"""In the supervisor: gives the guest's agent its commands, and checks that it followed them."""

import asyncio
from collections.abc import Mapping
from typing import Final

from coatcheck.launcher.channel import Channel, Stream, StreamReset, fresh

ORDER_SECONDS: Final = 30.0
"""For the agent to do one thing: two seconds to freeze a process that waits in the kernel, a busy disk."""


class AgentError(Exception):
    """A guest's agent did not do what it was told. In our words: its own could be anything."""


async def configure(channel: Channel, *fields: tuple[str, str]) -> None:
    """Limits, volumes, listeners (docs/guest-protocol.md). StreamReset when the guest cannot have them."""
    async with await channel.open("control", [("op", "configure"), *fields]) as stream:
        await stream.notes()


async def set_clock(channel: Channel) -> None:
    """One that stood still takes up the time of now, and chance that no copy of it has."""
    await obeyed(channel.order("configure", fresh().items()), "set its clock")


async def obeyed(stream: Stream, what: str) -> Mapping[str, str]:
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
