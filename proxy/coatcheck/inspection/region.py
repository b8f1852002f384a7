"""Reading one region and searching it: a file without its holes, or any bytes that can be read by offset."""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from coatcheck.inspection.residue import CHUNK, PAGE, Hit, Residues, Search

BLOCK: Final = 1024
"""Bytes: the smallest block of a guest's file system, and so where a file on its disk may be cut."""
TELL_SECONDS: Final = 0.2
MOST_FINDINGS: Final = 1000
"""Findings that are told one by one; the others are counted."""

type Tell = Callable[[dict[str, object]], None]
type Read = Callable[[memoryview, int], int]
"""Puts bytes from an offset into the view, as preadv(2) does."""


@dataclass(slots=True)
class Region:
    """One place, as far as it was searched."""

    name: str
    kind: str
    size: int = 0
    """Bytes, holes included."""
    read: int = 0
    """Bytes that were searched."""
    items: int = 0
    """Processes, or files of a tree."""
    unread: dict[str, int] = field(default_factory=dict)
    """Why something could not be searched -> how often."""

    def miss(self, why: str) -> None:
        self.unread[why] = self.unread.get(why, 0) + 1


class Scan:
    """All searching of one inspection."""

    def __init__(self, residues: Residues, tell: Tell, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._searches = {page: Search(residues, page) for page in (PAGE, BLOCK)}
        self._told_at = clock()
        self._read = 0
        self.findings = 0

    def runs(
        self, region: Region, read: Read, runs: Iterable[tuple[int, int]], *, page: int = PAGE, item: str = ""
    ) -> None:
        """Search each run `[begin, end)`, which begins at a page. `item` says what of the region it is."""
        search = self._searches[page]
        for begin, end in runs:
            at = begin
            while at < end:
                at = self._run(search, region, read, at, end, item)

    def _run(self, search: Search, region: Region, read: Read, at: int, end: int, item: str) -> int:
        """Search until the end of what can be read in one piece; where to go on."""
        search.begin(at)
        while at < end:
            want = min(CHUNK, end - at)
            got, over = _fill(read, search.room[:want], at)
            if got:
                self._found(region, search.search(got), item)
                region.read += got
                self._progress(got)
            at += got
            if got < want:
                if over == errno.ENODATA:  # it is shorter than it was
                    at = end
                else:
                    region.miss(f"a page cannot be read ({errno.errorcode.get(over, str(over))})")
                    at = (at // PAGE + 1) * PAGE
                break
        self._found(region, search.end(), item)
        return at

    def file(self, region: Region, fd: int, *, page: int = PAGE, item: str = "") -> None:
        """Search an open file or block device; its holes hold nothing."""
        size = os.fstat(fd).st_size
        if stat.S_ISBLK(os.fstat(fd).st_mode):
            size = os.lseek(fd, 0, os.SEEK_END)
        region.size += size
        self.runs(
            region, lambda view, at: os.preadv(fd, [view], at), _extents(fd, size), page=page, item=item
        )

    def bytes(self, region: Region, data: bytes, item: str) -> None:
        """Search bytes that are at hand."""
        view = memoryview(data)
        region.size += len(data)

        def read(into: memoryview, at: int) -> int:
            piece = view[at : at + len(into)]
            into[: len(piece)] = piece
            return len(piece)

        self.runs(region, read, [(0, len(data))], item=item)

    def _found(self, region: Region, hits: list[Hit], item: str) -> None:
        for hit in hits:
            self.findings += 1
            if self.findings <= MOST_FINDINGS:
                self._tell(
                    {
                        "finding": {
                            "credential": hit.credential,
                            "region": region.name,
                            "item": item,
                            "offset": hit.offset,
                            "kind": hit.kind.value,
                            "encoding": hit.encoding,
                        }
                    }
                )

    def _progress(self, got: int) -> None:
        self._read += got
        now = self._clock()
        if now - self._told_at >= TELL_SECONDS:
            self._told_at = now
            self._tell({"progress": self._read})


def _fill(read: Read, view: memoryview, at: int) -> tuple[int, int]:
    """How many bytes came, and the error number that ended it; ENODATA at the end of the file."""
    got = 0
    while got < len(view):
        try:
            n = read(view[got:], at + got)
        except OSError as error:
            return got, error.errno or errno.EIO
        if n == 0:
            return got, errno.ENODATA
        got += n
    return got, 0


def _extents(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Where a file has data, in whole pages, in order; what is next to each other in one piece."""
    known: tuple[int, int] | None = None
    for begin, end in _data(fd, size):
        # Blocks may be smaller than pages: two extents may share one.
        begin, end = begin // PAGE * PAGE, min(-(-end // PAGE) * PAGE, size)
        if known is not None and begin <= known[1]:
            known = known[0], end
            continue
        if known is not None:
            yield known
        known = begin, end
    if known is not None:
        yield known


def _data(fd: int, size: int) -> Iterator[tuple[int, int]]:
    at = 0
    while at < size:
        try:
            begin = os.lseek(fd, at, os.SEEK_DATA)
            end = os.lseek(fd, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # a file system, or a device, that knows of no holes
                yield at, size
            return
        yield begin, end
        at = max(end, at + 1)
