"""The child process that searches, so that the daemon's threads do not wait for it.

First line of its standard input: what to look for. It answers when it is ready, and the sandbox is paused
only then. Second line: where. Then it tells what it finds, one JSON object a line. Nothing that it writes
holds anything of a secret, nor of what stands around one.
"""

import json
import os
import resource
import sys
from collections.abc import Iterator
from typing import Any, Final

from coatcheck.inspection.processes import descendants, ran, search_memory, search_nameless_files
from coatcheck.inspection.region import BLOCK, Region, Scan
from coatcheck.inspection.residue import PAGE, Residues, Value
from coatcheck.inspection.scan_targets import Place, PlaceKind, place_of
from coatcheck.inspection.trees import Mounts, search_path, search_tree
from coatcheck.platform.process_memory import die_with_parent, hide_memory

MOST_MEMORY: Final = 2 << 30
"""Bytes of address space: a directory with ten million names ends us, and not the host."""
NICENESS: Final = 5
"""The paused sandbox waits for us, but the proxy's other sandboxes wait for nobody."""


def main() -> int:
    """0 when everything was looked at, or said to be unread; 1 when it broke off."""
    sys.excepthook = lambda kind, *_: _tell({"failed": kind.__name__})  # a message could quote what it read
    hide_memory()
    die_with_parent()
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    residues = Residues(_values(json.loads(sys.stdin.buffer.readline())))
    _tell({"ready": len(residues.forms)})
    scan = Scan(residues, _tell)
    for region in _search(scan, [place_of(said) for said in json.loads(sys.stdin.buffer.readline())]):
        _tell(
            {
                "region": {
                    "name": region.name,
                    "kind": region.kind,
                    "bytes": region.size,
                    "searched": region.read,
                    "items": region.items,
                    "unread": region.unread,
                }
            }
        )
    _tell({"done": scan.findings})
    return 0


def _values(said: list[dict[str, Any]]) -> list[Value]:
    return [Value(each["credential"], each["secret"].encode()) for each in said]


def _search(scan: Scan, places: list[Place]) -> Iterator[Region]:
    """Each file or directory is a region, and all processes together are one, since they start each other."""
    mounts = Mounts()
    for place in places:
        if place.path is None:
            continue
        region = Region(place.name, place.kind.value)
        if os.path.isdir(place.path) and not os.path.islink(place.path):
            search_tree(scan, region, place.path, mounts.known)
        else:
            search_path(scan, region, place.path, page=BLOCK if place.kind is PlaceKind.DISK else PAGE)
        yield region
    if roots := [place.pid for place in places if place.pid is not None]:
        region = Region("processes", PlaceKind.PROCESS.value)
        _search_processes(scan, region, roots, mounts)
        yield region


def _search_processes(scan: Scan, region: Region, roots: list[int], mounts: Mounts) -> None:
    files: set[tuple[int, int]] = set()
    processes = {pid for root in roots for pid in descendants(root)}
    for _ in set(roots) - processes:
        region.miss("a named process has ended")
    before = {pid: _ran(pid) for pid in processes}
    for pid in sorted(processes):
        search_memory(scan, region, pid)
        search_nameless_files(scan, region, pid, files)
        mounts.search(scan, region, pid)
    after = {pid for root in roots for pid in descendants(root)}
    if after != processes or before != {pid: _ran(pid) for pid in processes}:
        # Whatever runs can carry a secret from where we have not been to where we have.
        region.miss("a process ran while it was searched")


def _ran(pid: int) -> int:
    try:
        return ran(pid)
    except OSError:
        return -1


def _tell(what: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
