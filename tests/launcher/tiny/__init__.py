"""A guest that is Debian's kernel and one static program: it comes up soon and does what it is told."""

import asyncio
import shutil
import socket
import stat
import subprocess
from pathlib import Path

from coatcheck.images.cache import Cache
from coatcheck.images.initramfs import Entry, newc
from coatcheck.images.parts import Parts
from coatcheck.settings.daemon import Settings

ANSWER_SECONDS = 60.0
_NEEDS = (
    *("virtio_ring", "virtio", "virtio_mmio", "virtio_console", "virtio_blk"),
    *("virtio-rng", "virtio_balloon"),
)
"""Modules of the kernel, in the order in which init.c loads them."""


def build(directory: Path) -> Path:
    """An image for MicroVM in `directory`, with the kernel that real images have, from the user's cache."""
    source, program = Path(__file__).parent / "init.c", directory / "init"
    command = ["cc", "-static", "-Os", "-s", "-w", "-o", str(program), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    kernel = _kernel()
    entries = [Entry(name, stat.S_IFDIR | 0o755) for name in ("dev", "proc", "sys", "modules")]
    entries.append(Entry("init", stat.S_IFREG | 0o755, program.read_bytes()))
    modules = ((name, (kernel / f"{name}.ko").read_bytes()) for name in _NEEDS)
    entries += [Entry(f"modules/{name}.ko", stat.S_IFREG | 0o644, content) for name, content in modules]
    (directory / "initrd").write_bytes(newc(entries))
    shutil.copy(kernel / "vmlinuz", directory / "vmlinuz")
    (directory / "root.ext4").write_bytes(b"root".ljust(1 << 20, b"\0"))
    for name in ("initrd", "vmlinuz", "root.ext4"):
        (directory / name).chmod(0o644)
    return directory


def _kernel() -> Path:
    cache = Settings().cache
    images = Cache(cache)
    with images.building(print):
        return Parts(cache, images, print, refresh=False, force=False).kernel().path


class Guest:
    """The host's end of one's port."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._heard = b""

    async def line(self) -> str:
        async with asyncio.timeout(ANSWER_SECONDS):
            while b"\n" not in self._heard:
                received = await asyncio.get_running_loop().sock_recv(self._socket, 65536)
                if not received:
                    raise ConnectionError("the guest closed its port")
                self._heard += received
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    async def tell(self, command: str) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, command.encode() + b"\n")

    async def ask(self, command: str) -> str:
        await self.tell(command)
        return await self.line()

    def close(self) -> None:
        self._socket.close()
