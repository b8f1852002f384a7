"""In the supervisor: runs one sandbox (`python -m coatcheck.launcher`). Its spec comes on standard input."""

import asyncio
import sys

from coatcheck.launcher.machines import make_machine
from coatcheck.launcher.process import ANSWER_SECONDS, keep_to_ourselves, live, load_the_rest, read_spec
from coatcheck.launcher.spec import SupervisorSpec, loads


def main() -> int:
    """The exit code: 0 however the sandbox ended, as long as nothing of it is left."""
    spec = loads(read_spec())
    keep_to_ourselves((spec.lock,))
    asyncio.run(_supervise(spec))
    return 0


async def _supervise(spec: SupervisorSpec) -> None:
    machine = make_machine(spec)
    starting = asyncio.create_task(machine.start())  # in this thread: its death signal comes with ours
    await load_the_rest()
    from coatcheck.client.control import ControlClient
    from coatcheck.launcher.api import serving
    from coatcheck.launcher.boot import Boot
    from coatcheck.launcher.supervisor import Supervisor
    from coatcheck.metadata.service import MetadataService
    from coatcheck.sandbox.limits import said

    client = ControlClient(spec.control, timeout=ANSWER_SECONDS)
    metadata = MetadataService(client, spec.id, lambda: said(spec.limits))
    sandbox = Supervisor(spec, machine, client, metadata, Boot(spec, machine, starting))
    await live(sandbox, serving(sandbox), sandbox.run)


if __name__ == "__main__":
    sys.exit(main())
