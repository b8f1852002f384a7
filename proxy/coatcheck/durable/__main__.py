"""In the supervisor: runs one sandbox that may outlive its boot (`python -m coatcheck.durable`).

Its spec comes on standard input. A warm machine is told there later whose it is.
"""

import asyncio
import os
import socket
import sys
from functools import partial

from coatcheck.durable.machines import make_machine
from coatcheck.durable.spec import DurableSpec, loads
from coatcheck.launcher.process import ANSWER_SECONDS, keep_to_ourselves, live, load_the_rest, read_spec
from coatcheck.launcher.spec import MAX_BYTES


def main() -> int:
    """The exit code: 0 however the sandbox ended, as long as nothing of it is left but what was saved."""
    spec = loads(read_spec())
    keep_to_ourselves(spec.descriptors)
    asyncio.run(_supervise(spec))
    return 0


async def standard_input() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The socket that it is, where the daemon keeps the other end."""
    line = socket.socket(fileno=os.dup(0))
    return await asyncio.open_connection(sock=line, limit=MAX_BYTES)


async def _supervise(spec: DurableSpec) -> None:
    machine = make_machine(spec)
    starting = asyncio.create_task(machine.start())  # in this thread: its death signal comes with ours
    await load_the_rest()
    from coatcheck.client.control import ControlClient
    from coatcheck.durable.api import posts
    from coatcheck.durable.elasticity import Elasticity, Means
    from coatcheck.durable.metadata_scale import SCALE, ScaleResource
    from coatcheck.durable.microvm import DurableMicroVM
    from coatcheck.durable.snapshots.manifest import open_key
    from coatcheck.durable.supervisor import DurableSupervisor
    from coatcheck.durable.unbound import Unbound
    from coatcheck.launcher.api import serving
    from coatcheck.metadata.service import MetadataService
    from coatcheck.metadata.tokens import LastingTokens

    booted = None
    if spec.unbound:
        booted = Unbound(spec, machine, *await standard_input())
        claimed = await booted.wait(starting)
        if claimed is None:
            return
        spec = claimed
    told, saving = spec.sandbox, spec.saving
    client = ControlClient(told.control, timeout=ANSWER_SECONDS)
    means = None
    if spec.elastic is not None and isinstance(machine, DurableMicroVM) and machine.sizing is not None:
        means = Means(spec.elastic, machine.sizing, client)
    elasticity = Elasticity(told.id, told.limits, means, restored=saving.restore is not None)
    scale = ScaleResource(elasticity, owner=told.identities[0].name)
    lasting = None
    if (key := saving.snapshot_key) is not None:
        lasting = LastingTokens(partial(open_key, key), spec.ancestors)
    metadata = MetadataService(
        client, told.id, elasticity.limits, actions={SCALE: scale.answer}, lasting=lasting
    )
    supervisor = DurableSupervisor(spec, machine, client, metadata, starting, elasticity, booted)
    await live(supervisor.sandbox, serving(supervisor.sandbox, posts(supervisor)), supervisor.run)


if __name__ == "__main__":
    sys.exit(main())
