"""A guest that is Debian's kernel and one static program: it comes up soon and does what it is told."""

import asyncio
import fcntl
import shutil
import socket
import stat
import subprocess
from pathlib import Path

from coatcheck.launcher.image.initramfs import Entry, newc
from coatcheck.launcher.image.kernel import plain_module

CACHE = Path(__file__).parents[3] / "var" / "tests" / "kernel"
MODULES = ("virtio_ring", "virtio", "virtio_mmio", "virtio_console", "virtio_blk", "virtio-rng")
ANSWER_SECONDS = 60.0


def kernel() -> Path:
    """The cloud kernel's package, unpacked; kept from one run to the next."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unpacked = CACHE / "unpacked"
        if not unpacked.exists():
            listed = subprocess.run(
                ["apt-cache", "depends", "linux-image-cloud-amd64"],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            package = next(line.split()[-1] for line in listed.splitlines() if "Depends: linux-image" in line)
            subprocess.run(["apt-get", "download", package], cwd=CACHE, check=True, capture_output=True)
            (found,) = CACHE.glob("linux-image-*.deb")
            subprocess.run(["dpkg-deb", "-x", str(found), str(CACHE / "new")], check=True)
            found.unlink()
            (CACHE / "new").rename(unpacked)
    return unpacked


def build(directory: Path) -> Path:
    """An image for MicroVM in `directory`."""
    source, program = Path(__file__).parent / "init.c", directory / "init"
    command = ["cc", "-static", "-Os", "-s", "-w", "-o", str(program), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    unpacked = kernel()
    entries = [Entry(name, stat.S_IFDIR | 0o755) for name in ("dev", "proc", "sys", "modules")]
    entries.append(Entry("init", stat.S_IFREG | 0o755, program.read_bytes()))
    for name in MODULES:
        (file,) = unpacked.glob(f"lib/modules/*/kernel/**/{name}.ko*")
        _, content = plain_module(file.name, file.read_bytes())
        entries.append(Entry(f"modules/{name}.ko", stat.S_IFREG | 0o644, content))
    (directory / "initrd").write_bytes(newc(entries))
    (vmlinuz,) = unpacked.glob("boot/vmlinuz-*")
    shutil.copy(vmlinuz, directory / "vmlinuz")
    (directory / "root.ext4").write_bytes(b"root".ljust(1 << 20, b"\0"))
    for name in ("initrd", "vmlinuz", "root.ext4"):
        (directory / name).chmod(0o644)
    return directory


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
