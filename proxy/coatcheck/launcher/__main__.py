"""`python -m coatcheck.launcher`: the supervisor of one sandbox; its spec comes on standard input.

One that is unbound is told there later whose it is.
"""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from functools import partial
from importlib import import_module

from coatcheck.launcher.machines import make_machine
from coatcheck.launcher.spec import MAX_BYTES, SupervisorSpec, loads
from coatcheck.platform.process_memory import hide_memory

ANSWER_SECONDS = 10.0
LATER = ("coatcheck.launcher.api", "coatcheck.launcher.metadata", "coatcheck.telemetry.log")
"""What a booting guest does not wait for: half a second of imports."""


def main() -> int:
    """The exit code: 0 however the sandbox ended, as long as nothing of it is left."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o077)
    hide_memory()  # handles are in it
    spec = loads(sys.stdin.buffer.readline(MAX_BYTES))
    os.set_inheritable(spec.lock, False)  # the machine must not keep us alive in the daemon's eyes
    if spec.machine.template is not None:
        os.set_inheritable(spec.machine.template, False)
    asyncio.run(_supervise(spec))
    return 0


async def standard_input() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The socket that it is, where the daemon keeps the other end."""
    line = socket.socket(fileno=os.dup(0))
    return await asyncio.open_connection(sock=line, limit=MAX_BYTES)


async def _supervise(spec: SupervisorSpec) -> None:
    machine = make_machine(spec)
    starting = asyncio.create_task(machine.start())  # in this thread: its death signal comes with ours
    for name in LATER:
        await asyncio.to_thread(import_module, name)
    from coatcheck.client.control import ControlClient
    from coatcheck.durable.elasticity import Elasticity, Means, Resizable
    from coatcheck.durable.snapshots.manifest import open_key
    from coatcheck.durable.unbound import Unbound
    from coatcheck.launcher.api import serving
    from coatcheck.launcher.metadata import MetadataService
    from coatcheck.launcher.metadata_tokens import LastingTokens
    from coatcheck.launcher.sandbox import Ending
    from coatcheck.launcher.supervisor import Supervisor
    from coatcheck.telemetry.log import LogFormat, configure

    configure(LogFormat.HUMAN, "warning")
    booted = None
    if spec.unbound:
        booted = Unbound(spec, machine, *await standard_input())
        claimed = await booted.wait(starting)
        if claimed is None:
            return
        spec = claimed
    client = ControlClient(spec.control, timeout=ANSWER_SECONDS)
    means = None
    if spec.elastic is not None and isinstance(machine, Resizable) and machine.sizing is not None:
        means = Means(spec.elastic, machine.sizing, client)
    restored = spec.machine.restore is not None
    elasticity = Elasticity(spec.id, spec.limits, means, restored=restored)
    owner = spec.identities[0].name
    lasting = None
    if (key := spec.machine.snapshot_key) is not None:
        lasting = LastingTokens(partial(open_key, key), spec.ancestors)
    metadata = MetadataService(
        client, spec.id, elasticity.limits, scaler=elasticity, owner=owner, lasting=lasting
    )
    sandbox = Supervisor(spec, machine, client, metadata, starting, elasticity, booted)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, sandbox.end, Ending.KILLED, "its supervisor was told to stop")
    for number in (signal.SIGHUP, signal.SIGPIPE):
        with contextlib.suppress(ValueError):
            signal.signal(number, signal.SIG_IGN)
    async with serving(sandbox):
        ending, detail = await sandbox.run()
    logging.getLogger("coatcheck.launcher").info("sandbox %s ended: %s: %s", spec.id, ending, detail)


if __name__ == "__main__":
    sys.exit(main())
