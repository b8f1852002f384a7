"""In the supervisor: prepares a guest that has just booted: network, limits, disks, trust."""

import logging
from collections.abc import Mapping
from typing import Final

from coatcheck.launcher.agent import configure
from coatcheck.launcher.channel import Channel
from coatcheck.launcher.network import close_network
from coatcheck.launcher.spec import Identity, SupervisorSpec
from coatcheck.launcher.trust import BrowserTrust, provide
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


async def prepare(channel: Channel, spec: SupervisorSpec, browsers: BrowserTrust) -> None:
    """Close its network; give it limits, volumes and trust. StreamReset: it cannot have them."""
    machine = spec.machine
    if not await close_network(channel, {each.name: each.uid for each in spec.identities}):
        logger.warning(
            "sandbox %s has no transparent mode, only programs that heed proxy variables get out", spec.id
        )
    fields = [("processes", str(machine.resources.processes))]
    if spec.backend is Backend.MICROVM:
        fields.append(("memory", str(for_commands(spec.limits.resources.memory_mib))))
    for number, volume in enumerate(machine.volumes):
        fields.append(("volume", f"volume{number}={volume.at}"))
    await configure(channel, *fields)
    await provide(channel, spec.identities, browsers)


def environment(identity: Identity, metadata: MetadataService) -> Mapping[str, str]:
    """What every command of that identity finds: handles, proxy, trust, and where AWS's SDKs ask."""
    given = dict(identity.environment)
    if not set(_AWS_KEYS) & given.keys():
        return given
    # SDKs refresh what they get from the metadata service, and prefer the variables if both are there.
    return {name: value for name, value in given.items() if name not in _AWS_KEYS} | metadata.environment(
        Client(identity.name, identity.session)
    )
