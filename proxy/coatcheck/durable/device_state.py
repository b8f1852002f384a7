"""In the supervisor: moves the state of QEMU's devices out of one process and into another of the same build,
through its control socket. The guest's memory is not part of it: that is a file of ours, or a private map.

The commands are those that Xen's tools use; `migrate` would take memory along that is mapped privately, and
refuse to be asked twice.
"""

import asyncio
import os
from typing import Final

from coatcheck.launcher.qmp import Qmp, QmpError
from coatcheck.sandbox.machine import MachineError

SECONDS: Final = 30.0
"""For some 20 KiB."""
_POLL_SECONDS: Final = 0.002


async def save(qmp: Qmp, file: int) -> None:
    """Into `file`, which is empty, open for writing only, and closed by this. The guest stands still.
    MachineError when QEMU cannot."""
    try:
        known = await qmp.execute("add-fd", descriptor=file)
    finally:
        os.close(file)
    number = known["fdset-id"]
    try:
        # live: QEMU would give its disks up to a successor.
        where = {"filename": f"/dev/fdset/{number}", "live": False}
        await qmp.execute("xen-save-devices-state", where, seconds=SECONDS)
    finally:
        await qmp.execute("remove-fd", {"fdset-id": number})


async def load(qmp: Qmp, descriptor: int) -> None:
    """From `descriptor` into a QEMU that was started for it (`Hardware.incoming`). Its CPUs stand still
    afterwards. MachineError when it is not a state that this QEMU takes."""
    refused = "QEMU does not take the saved state of its devices"
    try:
        await qmp.execute("getfd", {"fdname": "state"}, descriptor=descriptor)
        await qmp.execute("migrate-incoming", {"uri": "fd:state"})
        async with asyncio.timeout(SECONDS):
            while (told := (await qmp.execute("query-migrate")).get("status")) != "completed":
                if told == "failed":
                    raise MachineError(refused, "use another snapshot")
                await asyncio.sleep(_POLL_SECONDS)
    except QmpError as error:  # it ends itself when a state does not fit
        raise MachineError(f"{refused}: {error}", "use another snapshot") from error


async def version(qmp: Qmp) -> str:
    """As people know it: 7.2.22 (Debian 1:7.2+dfsg-7)."""
    told = await qmp.execute("query-version")
    numbers, package = told["qemu"], str(told.get("package", "")).strip()
    plain = f"{numbers['major']}.{numbers['minor']}.{numbers['micro']}"
    return f"{plain} ({package})" if package else plain
