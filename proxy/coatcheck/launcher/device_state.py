"""What QEMU knows of its devices, out of one process and into another of the same build, through its control
socket. Memory does not go this way: QEMU leaves out what it maps as a shared file (`x-ignore-shared`)."""

import asyncio
import os
from pathlib import Path
from typing import Final

from coatcheck.launcher.machine import MachineError
from coatcheck.launcher.qmp import Qmp, QmpError

SECONDS: Final = 30.0
"""For some 70 KiB."""
_POLL_SECONDS: Final = 0.002
_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


async def save(qmp: Qmp, path: Path) -> None:
    """Into a new file, which is ours: QEMU can open none. Its guest stands still, and must go on before this
    can be done again. MachineError when QEMU cannot, or the file is there."""
    file = os.open(path, _NEW, 0o600)
    try:
        await _give(qmp, file)
    finally:
        os.close(file)
    await qmp.execute("migrate", {"uri": "fd:state"})
    await _completed(qmp, "QEMU could not save the state of its devices")


async def load(qmp: Qmp, descriptor: int) -> None:
    """From `descriptor` into a QEMU that was started with `-incoming defer`. Its CPUs stand still afterwards.
    MachineError when it is not a state that this QEMU takes."""
    await _give(qmp, descriptor)
    refused = "QEMU does not take the saved state of its devices"
    try:
        await qmp.execute("migrate-incoming", {"uri": "fd:state"})
        await _completed(qmp, refused)
    except QmpError as error:  # it ends itself when a state does not fit
        raise MachineError(f"{refused}: {error}", "use another snapshot") from error


async def version(qmp: Qmp) -> str:
    """As people know it: 7.2.22 (Debian 1:7.2+dfsg-7)."""
    told = await qmp.execute("query-version")
    numbers, package = told["qemu"], str(told.get("package", "")).strip()
    plain = f"{numbers['major']}.{numbers['minor']}.{numbers['micro']}"
    return f"{plain} ({package})" if package else plain


async def _give(qmp: Qmp, descriptor: int) -> None:
    await qmp.execute("getfd", {"fdname": "state"}, descriptor=descriptor)
    shared = {"capability": "x-ignore-shared", "state": True}
    await qmp.execute("migrate-set-capabilities", {"capabilities": [shared]})


async def _completed(qmp: Qmp, otherwise: str) -> None:
    async with asyncio.timeout(SECONDS):
        while (told := (await qmp.execute("query-migrate")).get("status")) != "completed":
            if told in ("failed", "cancelled"):
                raise MachineError(otherwise, "try again; if it happens again, begin anew")
            await asyncio.sleep(_POLL_SECONDS)
