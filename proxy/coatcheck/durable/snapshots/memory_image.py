"""In daemon and supervisor: copies large sparse files, and computes digests that show changed or truncated
ones.

A digest covers what is not zero, by its place: it says nothing of where a filesystem has holes, so a copy by
whatever program has the digests of the original. Blocking, in threads of its own; no event loop.
"""

import hashlib
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

PIECE = 4 * 1024 * 1024
"""What has a digest of its own: small enough for two threads to end at the same time."""
THREADS = 2
"""SHA-256 and copies are bound by memory; more threads take CPU from guests."""
_BLOCK = 64 * 1024
_STEP = 4 * _BLOCK
"""What is read at once: it is still in the CPU's cache when it is looked at, hashed and written."""
_GLANCE = 256
_ZEROS = bytes(_BLOCK)
_PLACE = struct.Struct("<QQ")
_mine = threading.local()
"""A buffer for each thread: new ones would cost a page fault a page."""


class AlteredImage(Exception):
    """An image is not what its digests say. The message says where, and how."""


def copy(source: int, target: int, size: int) -> int:
    """Copy the first `size` bytes; `target` is new and empty. Zeros become holes. Bytes that were written.

    OSError as writing raises it, with ENOSPC above all.
    """

    def one(start: int) -> int:
        return sum(write(target, at, run) for at, run in _runs(source, start, min(start + PIECE, size)))

    os.ftruncate(target, size)
    with ThreadPoolExecutor(THREADS) as threads:
        return sum(threads.map(one, range(0, size, PIECE)))


def digests(image: int, size: int) -> tuple[str, ...]:
    """Of each piece, in order; empty for one that is all zeros."""

    def one(start: int) -> str:
        digest = _Digest()
        for at, run in _runs(image, start, min(start + PIECE, size)):
            digest.add(at, run)
        return digest.text()

    with ThreadPoolExecutor(THREADS) as threads:
        return tuple(threads.map(one, range(0, size, PIECE)))


def load(source: int, target: int, size: int, wanted: Sequence[str]) -> None:
    """Copy as `copy` does, and check each piece on its way. `target` is worthless after an AlteredImage."""

    def one(start: int, digest: str) -> None:
        for at, run in _checked(source, start, min(start + PIECE, size), digest):
            write(target, at, run)

    with ThreadPoolExecutor(THREADS) as threads:
        for _ in threads.map(one, _starts(source, size, wanted), wanted):
            pass


def checked(source: int, size: int, wanted: Sequence[str]) -> Iterator[tuple[int, bytes]]:
    """Places and bytes of what is not zero, in order, each after its piece was checked. AlteredImage."""
    for start, digest in zip(_starts(source, size, wanted), wanted, strict=True):
        runs = _checked(source, start, min(start + PIECE, size), digest)
        yield from [(at, bytes(run)) for at, run in runs]


def _starts(source: int, size: int, wanted: Sequence[str]) -> range:
    have = os.fstat(source).st_size
    if have != size:
        raise AlteredImage(f"it has {have} bytes, and {size} were written")
    starts = range(0, size, PIECE)
    if len(wanted) != len(starts):
        raise AlteredImage(f"there are {len(wanted)} digests for {len(starts)} pieces")
    return starts


def _checked(source: int, start: int, end: int, wanted: str) -> Iterator[tuple[int, memoryview]]:
    """As `_runs`; AlteredImage after the last of them if they were not what was wanted."""
    if not wanted:  # all zeros, whatever stands there now
        return
    digest = _Digest()
    for at, run in _runs(source, start, end):
        digest.add(at, run)
        yield at, run
    if digest.text() != wanted:
        raise AlteredImage(f"its bytes from {start} on are not those that were written")


class _Digest:
    """Of a piece: each block that is not all zeros, with its place."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._empty = True

    def add(self, at: int, run: memoryview) -> None:
        self._empty = False
        for start in range(0, len(run), _BLOCK):
            block = run[start : start + _BLOCK]
            self._hash.update(_PLACE.pack(at + start, len(block)))
            self._hash.update(block)

    def text(self) -> str:
        return "" if self._empty else self._hash.hexdigest()


def _runs(file: int, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
    """Places and bytes of rows of blocks that are not all zeros. Each is valid until the next."""
    if not hasattr(_mine, "buffer"):
        _mine.buffer = bytearray(_STEP)
    for first, last in _extents(file, start, end):
        for at in range(first, last, _STEP):
            view = memoryview(_mine.buffer)[: min(_STEP, last - at)]
            _read(file, at, view)
            for begin, stop in _rows(view):
                yield at + begin, view[begin:stop]


def _rows(view: memoryview) -> Iterator[tuple[int, int]]:
    begin = stop = 0  # of the row that is being collected, empty at first
    for at in range(0, len(view), _BLOCK):
        block = view[at : at + _BLOCK]
        # Most blocks show in their first bytes that they are not zero; the others are copied to be compared.
        if bytes(block[:_GLANCE]) == _ZEROS[:_GLANCE] and bytes(block) == _ZEROS[: len(block)]:
            continue
        if at != stop:
            if begin < stop:
                yield begin, stop
            begin = at
        stop = at + len(block)
    if begin < stop:
        yield begin, stop


def _extents(file: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """What is no hole, in whole blocks."""
    at = start
    while at < end:
        try:
            data = os.lseek(file, at, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole until the end
            return
        first = max(at, data - data % _BLOCK)
        if first >= end:
            return
        hole = os.lseek(file, data, os.SEEK_HOLE)
        last = min(end, hole + -hole % _BLOCK)
        yield first, last
        at = last


def _read(file: int, at: int, into: memoryview) -> None:
    while into:
        count = os.preadv(file, [into], at)
        if not count:
            raise AlteredImage(f"it ends at {at}")
        at, into = at + count, into[count:]


def write(file: int, at: int, content: memoryview) -> int:
    """All of it; how much that is."""
    written = 0
    while written < len(content):
        written += os.pwrite(file, content[written:], at + written)
    return written
