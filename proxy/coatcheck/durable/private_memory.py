"""In the supervisor: reads a guest's memory where QEMU maps a template privately: the template, and the
pages that the guest wrote to, which are in no file. They are told apart by /proc/<pid>/pagemap, and read
while the guest stands still."""

import array
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from coatcheck.durable.snapshots.memory_image import write

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PIECE: Final = 4 * 1024 * 1024
_PRESENT, _SWAPPED, _OF_A_FILE = 1 << 63, 1 << 62, 1 << 61
"""Bits of a page's entry (the kernel's admin-guide/mm/pagemap)."""


def own_pages(pid: int, template: int) -> Iterator[tuple[int, int, int]]:
    """Rows of pages of process `pid` that are no longer the template's: where they belong in the template, at
    which address they are, bytes. Blocking. OSError where we may not look."""
    size = os.fstat(template).st_size
    pagemap = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for start, end, offset in _maps(pid, template):
            for at in range(start, min(end, start + size - offset), _PIECE):
                count = min(_PIECE, end - at, start + size - offset - at) // _PAGE
                entries = array.array("Q", os.pread(pagemap, 8 * count, at // _PAGE * 8))
                yield from _rows(entries, at, at - start + offset)
    finally:
        os.close(pagemap)


def copy_own(pid: int, template: int, target: int) -> int:
    """Put those pages into `target`, which holds a copy of the template. Bytes that were written. OSError."""
    copied = 0
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        buffer = memoryview(bytearray(_PIECE))
        for place, address, length in own_pages(pid, template):
            have = os.preadv(memory, [buffer[:length]], address)
            copied += write(target, place, buffer[:have])
            if have != length:
                raise OSError(5, f"{have} of {length} bytes could be read at {address:#x}")
    finally:
        os.close(memory)
    return copied


def _maps(pid: int, template: int) -> Iterator[tuple[int, int, int]]:
    inode = os.fstat(template).st_ino
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        place, _, offset, device, number, *_ = line.split()
        if int(number) == inode and device == "00:01":  # the kernel's own filesystem of nameless memory
            start, end = (int(each, 16) for each in place.split("-"))
            yield start, end, int(offset, 16)


def _rows(entries: "array.array[int]", address: int, place: int) -> Iterator[tuple[int, int, int]]:
    begin = None
    for number, entry in enumerate([*entries, 0]):
        own = entry & (_PRESENT | _SWAPPED) and not entry & _OF_A_FILE
        if own and begin is None:
            begin = number
        elif not own and begin is not None:
            yield place + begin * _PAGE, address + begin * _PAGE, (number - begin) * _PAGE
            begin = None
