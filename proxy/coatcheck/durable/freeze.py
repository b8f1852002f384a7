"""In the supervisor: freezes a guest so that it can be saved, and thaws it: as it was, or with a new
identity (I10)."""

import secrets
from collections.abc import Iterable
from typing import Final

from coatcheck.launcher.agent import AgentError, obeyed
from coatcheck.launcher.channel import Channel, fresh
from coatcheck.launcher.preparing import hostname
from coatcheck.launcher.spec import SupervisorSpec

MACHINE_ID_BYTES: Final = 16
"""Of /etc/machine-id (machine-id(5))."""


async def freeze(channel: Channel) -> None:
    """Commands stand still, disks are written, nothing is under way in the channel; until `thaw`.

    AgentError, ChannelBroken: it may stand half still, and is to be thawed all the same.
    """
    channel.hold_back()
    said = await obeyed(channel.order("freeze"), "stop its commands")
    if said.get("frozen") != "yes":
        raise AgentError("the sandbox's agent did not stop its commands")
    await obeyed(channel.order("sync"), "write its disks")


async def thaw(channel: Channel) -> None:
    """All of it goes on. AgentError, ChannelBroken: it does not, and such a sandbox is of no use."""
    stream = channel.order("thaw")
    channel.go_on()  # behind that order
    said = await obeyed(stream, "let its commands go on")
    if said.get("frozen") != "no":
        raise AgentError("the sandbox's agent did not let its commands go on")


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
    said = await obeyed(channel.order("rebind", person), "get its own identity")
    if said.get("generation") != str(spec.machine.generation):
        raise AgentError("the sandbox's agent acknowledged another generation than its own")
