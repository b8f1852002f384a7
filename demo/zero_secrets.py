"""The search, from the host, for secrets in a sandbox: memory and environment of its processes, its files.

A search that finds nothing proves something only if it would have found it: the handles, which are there,
are searched for in the same pass.
"""

import base64
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_BLOCK = 8 << 20
_OVERLAP = 4096
"""Bytes that two blocks share, so that nothing hides where they meet. Longer than anything searched for."""
_WRITTEN_IN = ("home/agent", "tmp")


@dataclass(slots=True)
class Searched:
    """What was searched, and how often what was found."""

    processes: int = 0
    memory_bytes: int = 0
    files: int = 0
    output_bytes: int = 0
    unreadable: list[str] = field(default_factory=list)
    hits: Counter[str] = field(default_factory=Counter)
    """Name of a secret or handle -> in how many places."""

    def add(self, other: "Searched") -> None:
        self.processes += other.processes
        self.memory_bytes += other.memory_bytes
        self.files += other.files
        self.output_bytes += other.output_bytes
        self.unreadable += other.unreadable
        self.hits += other.hits


def needles(named: Mapping[str, str]) -> list[tuple[bytes, str]]:
    """What to search for: each value as it is, and inside any Base64 text (as Basic carries it)."""
    wanted = []
    for name, value in named.items():
        raw = value.encode()
        wanted.append((raw, name))
        for shift in range(3):
            # By where it starts in a group of three bytes; its ends mix with its neighbours' bits.
            face = base64.b64encode(b"\0" * shift + raw).rstrip(b"=")
            wanted.append((face[(shift * 8 + 5) // 6 : -1], name))
    return wanted


def search_processes(root: int, wanted: list[tuple[bytes, str]], scratch: Path | None) -> Searched:
    """All processes below `root` that run now, and the files that they can have written.

    `scratch`: the sandbox's files, when it has no file system of its own.
    """
    found = Searched()
    directories: set[tuple[int, int]] = set()
    for pid in descendants(root):
        try:
            if Path(os.readlink(f"/proc/{pid}/exe")).name == "bwrap":
                continue  # bubblewrap itself: none of the sandbox's programs
            _search_process(pid, wanted, found)
            if scratch is None:
                for place in _WRITTEN_IN:
                    _search_files(Path(f"/proc/{pid}/root") / place, wanted, found, directories)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        except PermissionError as error:
            found.unreadable.append(f"process {pid}: {error.strerror}")
    if scratch is not None:
        _search_files(scratch, wanted, found, directories)
    return found


def search_bytes(data: bytes, wanted: list[tuple[bytes, str]]) -> Searched:
    """What a sandbox said."""
    found = Searched(output_bytes=len(data))
    _note(data, wanted, found)
    return found


def descendants(root: int) -> Iterator[int]:
    """`root` and all processes that it, or they, started."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry))
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, [])


def _search_process(pid: int, wanted: list[tuple[bytes, str]], found: Searched) -> None:
    _note(Path(f"/proc/{pid}/environ").read_bytes(), wanted, found)
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            place, permissions, *_ = line.split()
            # What cannot be written and comes from a file of the system holds nothing that was received.
            if "w" not in permissions or "r" not in permissions:
                continue
            start, end = (int(side, 16) for side in place.split("-"))
            found.memory_bytes += _search_region(memory.fileno(), start, end, wanted, found)
    found.processes += 1


def _search_region(
    memory: int, start: int, end: int, wanted: list[tuple[bytes, str]], found: Searched
) -> int:
    searched, tail = 0, b""
    while start < end:
        try:
            block = os.pread(memory, min(_BLOCK, end - start), start)
        except OSError:
            break  # guard pages and device memory
        if not block:
            break
        _note(tail + block, wanted, found)
        searched += len(block)
        start += len(block)
        tail = block[-_OVERLAP:]
    return searched


def _search_files(
    top: Path, wanted: list[tuple[bytes, str]], found: Searched, known: set[tuple[int, int]]
) -> None:
    try:
        identity = os.stat(top)
    except FileNotFoundError:
        return
    if (identity.st_dev, identity.st_ino) in known:
        return
    known.add((identity.st_dev, identity.st_ino))
    for directory, _, names in os.walk(top):
        for name in names:
            path = Path(directory) / name
            if path.is_symlink() or not path.is_file():
                continue  # a link of the sandbox's making must not lead us to a file of the host
            _note(path.read_bytes(), wanted, found)
            found.files += 1


def _note(data: bytes, wanted: list[tuple[bytes, str]], found: Searched) -> None:
    for needle, name in wanted:
        if needle in data:
            found.hits[name] += 1
