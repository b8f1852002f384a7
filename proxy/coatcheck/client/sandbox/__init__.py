"""A small Python client for sandboxes: make one, run commands in it, move files, reach its ports, end it.

May import: client.

    async with SandboxClient(Path.home() / ".local/state/coatcheck/run/control.sock") as client:
        async with await client.create(tenant="acme", subject="me", policy="default") as sandbox:
            done = await sandbox.run(["python3", "-c", "print(6 * 7)"])
            print(done.exit_code, done.stdout)

`blocking.BlockingClient` is the same for programs without an event loop.
"""

from coatcheck.client.control import ControlError
from coatcheck.client.sandbox.client import Sandbox, SandboxClient
from coatcheck.client.sandbox.process import Ended, Finished, Output, Process

__all__ = ["ControlError", "Ended", "Finished", "Output", "Process", "Sandbox", "SandboxClient"]
