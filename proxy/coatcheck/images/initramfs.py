"""The initramfs, as an uncompressed newc archive that we write ourselves: init, the agent, and a few modules.

Uncompressed: QEMU copies it into the guest's memory at once, and the guest, which may be emulated, has
nothing to unpack. Every byte follows from the content, so that the same content gives the same file.
"""

import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_MAGIC = b"070701"
_TRAILER = b"TRAILER!!!"
_DEV_CONSOLE = (5, 1)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: an absolute path without its slash, its mode with the file type, and its bytes or device."""

    name: str
    mode: int
    content: bytes = b""
    device: tuple[int, int] = (0, 0)


def newc(entries: Iterable[Entry]) -> bytes:
    """An archive as the kernel's documentation describes (driver-api/early-userspace/buffer-format)."""
    archive = bytearray()
    for inode, entry in enumerate(entries, start=1):
        _append(archive, inode, entry.name.encode(), entry)
    _append(archive, 0, _TRAILER, Entry("", 0))
    return bytes(archive)


def _append(archive: bytearray, inode: int, name: bytes, entry: Entry) -> None:
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (
        inode, entry.mode, 0, 0, links, 0, len(entry.content), 0, 0, *entry.device, len(name) + 1, 0,
    )  # fmt: skip
    archive += _MAGIC + b"".join(b"%08X" % field for field in fields) + name + b"\0"
    archive += b"\0" * (-len(archive) % 4)
    archive += entry.content
    archive += b"\0" * (-len(archive) % 4)


def initramfs(init: bytes, agent: bytes, modules: Sequence[tuple[str, bytes]]) -> bytes:
    """What init.c expects. `modules` (file name, content) stand in the order in which they load."""
    directory, program, plain = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o755, stat.S_IFREG | 0o644
    order = "".join(f"{name}\n" for name, _ in modules).encode()
    return newc(
        (
            Entry("dev", directory),
            # The kernel opens it before init runs: without it init's first words would be lost.
            Entry("dev/console", stat.S_IFCHR | 0o600, device=_DEV_CONSOLE),
            Entry("init", program, init),
            Entry("agent", program, agent),
            Entry("modules", directory),
            Entry("modules/load", plain, order),
            *(Entry(f"modules/{name}", plain, content) for name, content in modules),
        )
    )
