"""The processes of a sandbox in the namespace backend: their memory, and open files that have no name.

Everything that is present in memory is read, whatever its protection: ptrace(2) access reads pages that the
process itself could not. The environment and the arguments stand in that memory, too.
"""

import os
import re
import stat
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from coatcheck.inspection.region import Region, Scan
from coatcheck.inspection.residue import PAGE
from coatcheck.inspection.trees import attributes

MOST_PROCESSES: Final = 65_536
"""Of one sandbox; its limit is far lower."""
_HEAD = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) \S{4} [0-9a-f]+ \S+ \d+\s*(.*)")
_RESIDENT = re.compile(rb"(?:Rss|Swap): +(\d+) kB")
_KERNELS: Final = frozenset({b"[vvar]", b"[vvar_vclock]", b"[vsyscall]"})
"""The kernel's own pages, the same in every process; they cannot be read this way."""
_PRESENT: Final = 1 << 63 | 1 << 62
"""In pagemap: in memory, or swapped out."""
_ENTRIES: Final = 65_536


def descendants(root: int) -> list[int]:
    """`root` and all processes that it, or they, started; without those that have ended."""
    children: dict[int, list[int]] = {}
    ended: set[int] = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue  # it has just ended
            if fields[0] in (b"Z", b"X"):
                ended.add(int(entry))
            children.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    waiting = [root]
    while waiting and len(found) < MOST_PROCESSES:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return [pid for pid in found if pid not in ended and Path(f"/proc/{pid}").exists()]


def ran(pid: int) -> int:
    """How often its threads have been given a processor. It grows as soon as one of them runs."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        status = Path(f"/proc/{pid}/task/{thread}/status").read_bytes()
        total += sum(int(n) for n in re.findall(rb"ctxt_switches:\s+(\d+)", status))
    return total


def search_memory(scan: Scan, region: Region, pid: int) -> None:
    """Everything of one process that is in memory or in swap."""
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        region.miss(f"a process cannot be read ({error.strerror})")
        return
    try:
        pagemap = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        pagemap = -1
    try:
        for begin, end in _mappings(pid):
            region.size += end - begin
            scan.runs(
                region,
                lambda view, at: os.preadv(memory, [view], at),
                _present(pagemap, begin, end) if pagemap >= 0 else [(begin, end)],
                item=f"process {pid}",
            )
        region.items += 1
    except OSError as error:
        region.miss(f"a process cannot be read ({error.strerror})")
    finally:
        os.close(memory)
        if pagemap >= 0:
            os.close(pagemap)


def search_nameless_files(scan: Scan, region: Region, pid: int, known: set[tuple[int, int]]) -> None:
    """Open files that stand in no directory: deleted ones, and memory files (memfd_create(2))."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError as error:
        region.miss(f"a process's open files cannot be listed ({error.strerror})")
        return
    for number in numbers:
        link = f"/proc/{pid}/fd/{number}"
        try:
            status = os.stat(link)
            identity = status.st_dev, status.st_ino
            if not stat.S_ISREG(status.st_mode) or status.st_nlink or identity in known:
                continue
            known.add(identity)
            fd = os.open(link, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            region.miss(f"an open file cannot be read ({error.strerror})")
            continue
        try:
            item = f"process {pid}, open file {number}"
            scan.file(region, fd, item=item)
            if held := b"\0".join(attributes(fd)):
                scan.bytes(region, held, item=item)
        except OSError as error:
            region.miss(f"an open file cannot be read ({error.strerror})")
        finally:
            os.close(fd)


def _mappings(pid: int) -> Iterator[tuple[int, int]]:
    """Mappings with something in memory or in swap. The others, terabytes at times, are promises only."""
    here: tuple[int, int] | None = None
    for line in Path(f"/proc/{pid}/smaps").read_bytes().splitlines():
        if head := _HEAD.match(line):
            here = None if head[3] in _KERNELS else (int(head[1], 16), int(head[2], 16))
        elif here is not None and (resident := _RESIDENT.match(line)) and int(resident[1]):
            yield here
            here = None


def _present(pagemap: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The runs of pages that are in memory or in swap."""
    run: int | None = None
    at = begin
    while at < end:
        wanted = min(_ENTRIES, (end - at) // PAGE)
        entries = array("Q", os.pread(pagemap, wanted * 8, at // PAGE * 8))
        if not entries:
            break
        for entry in entries:
            if entry & _PRESENT:
                if run is None:
                    run = at
            elif run is not None:
                yield run, at
                run = None
            at += PAGE
    if run is not None:
        yield run, at
