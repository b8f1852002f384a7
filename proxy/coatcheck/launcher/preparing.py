"""In the supervisor: prepares a guest that has just booted: its name, its limits, its disks."""

import logging
from collections.abc import Mapping
from typing import Final

from coatcheck.launcher.channel import Channel
from coatcheck.launcher.spec import Identity, SupervisorSpec
from coatcheck.metadata.http import Client
from coatcheck.metadata.service import MetadataService
from coatcheck.sandbox.limits import for_commands
from coatcheck.sandbox.sandbox import Backend

logger = logging.getLogger(__name__)

_AWS_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def hostname(spec: SupervisorSpec) -> str:
    return spec.id.replace("_", "-")


def hello(spec: SupervisorSpec) -> dict[str, str]:
    """What our HELLO says to it."""
    return {
        "generation": str(spec.machine.generation),
        "hostname": hostname(spec),
        "identities": ",".join(f"{each.name}:{each.uid}" for each in spec.identities),
    }


async def configure(channel: Channel, spec: SupervisorSpec) -> None:
    """Limits and volumes. StreamReset when the guest cannot have them."""
    machine = spec.machine
    fields = [("op", "configure"), ("processes", str(machine.resources.processes))]
    if spec.backend is Backend.MICROVM:
        fields.append(("memory", str(for_commands(spec.limits.resources.memory_mib))))
    for number, volume in enumerate(machine.volumes):
        fields.append(("volume", f"volume{number}={volume.at}"))
    stream = await channel.open("control", fields)
    async with stream:
        for note in await stream.notes():
            if note.get("redirect") == "none":
                logger.warning(
                    "sandbox %s has no transparent mode, only programs that heed proxy variables get out",
                    spec.id,
                )


def environment(identity: Identity, metadata: MetadataService) -> Mapping[str, str]:
    """What every command of that identity finds: handles, proxy, trust, and where AWS's SDKs ask."""
    given = dict(identity.environment)
    if not set(_AWS_KEYS) & given.keys():
        return given
    # SDKs refresh what they get from the metadata service, and prefer the variables if both are there.
    return {name: value for name, value in given.items() if name not in _AWS_KEYS} | metadata.environment(
        Client(identity.name, identity.session)
    )
