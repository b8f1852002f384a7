"""In daemon and supervisor: keeps all snapshots of one sandbox: how many, their names, and what a crash
left of one.

Blocking. None is removed to make room for another unless the caller that wants another one names it.
"""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coatcheck.durable.snapshots import manifest
from coatcheck.durable.snapshots.directory import FILES, UNFINISHED
from coatcheck.durable.snapshots.manifest import Manifest, SnapshotError

LIMIT: Final = 10
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_REMOVED: Final = f"{UNFINISHED}removed-"


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """One that is there."""

    name: str
    manifest: Manifest | None
    """None: it was altered, or is not ours; it can only be removed."""
    bytes_on_disk: int


class Store:
    """The directory that holds them; one sandbox's, 0700."""

    def __init__(self, directory: Path, limit: int = LIMIT) -> None:
        self.directory = directory
        self._limit = limit

    def list(self, key: bytes) -> tuple[StoredSnapshot, ...]:
        """The oldest first; what cannot be read last. Those that are being written are not there yet."""
        entries = [_entry(path, key) for path in self._finished()]
        return tuple(sorted(entries, key=lambda each: (_time(each), each.name)))

    def place(self, name: str, key: bytes, replaces: str | None = None) -> Path:
        """Where a new one called `name` goes. SnapshotError when it may not be, or there are as many as may
        be: it says what to remove. `replaces`: one that is removed after this, so that there are no more than
        before, also where fewer may be by now."""
        check_name(name)
        there = self._finished()
        if self.directory / name in there:
            raise SnapshotError(f"there is a snapshot {name} already", "remove it, or use another name")
        if len(there) >= self._limit and self.directory / (replaces or "") not in there:
            oldest = ", ".join(each.name for each in self.list(key)[:3])
            raise SnapshotError(
                f"this sandbox has {len(there)} snapshots, and may have {self._limit}",
                f"remove one that is not needed; the oldest are {oldest}",
            )
        return self.directory / name

    def find(self, name: str) -> Path:
        """Where `name` is. SnapshotError when it is not there."""
        check_name(name)
        if self.directory / name not in self._finished():
            have = ", ".join(path.name for path in self._finished())
            raise SnapshotError(
                f"there is no snapshot {name}",
                f"there are: {have}" if have else "take one: coatcheck sandbox snapshot",
            )
        return self.directory / name

    def remove(self, name: str) -> None:
        """At once gone from the list, then from the disk. SnapshotError when it is not there."""
        aside = self.directory / f"{_REMOVED}{name}"
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(self.find(name), aside)
        shutil.rmtree(aside, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what a crash left half written or half removed. Only while nobody writes here."""
        if self.directory.is_dir():
            for left in self.directory.glob(f"{UNFINISHED}*"):
                shutil.rmtree(left, ignore_errors=True)

    def _finished(self) -> tuple[Path, ...]:
        if not self.directory.is_dir():
            return ()
        return tuple(path for path in sorted(self.directory.iterdir()) if _NAME.fullmatch(path.name))


def check_name(name: str) -> None:
    """SnapshotError for what is no name: it comes from a caller, and becomes a path."""
    if not _NAME.fullmatch(name):
        raise SnapshotError(
            f"{name[:80]!r} is not a snapshot name",
            "up to 64 of a-z, 0-9, dot, dash and underscore, the first a letter or a digit",
        )


def _entry(path: Path, key: bytes) -> StoredSnapshot:
    try:
        found = manifest.read(path, key)
    except SnapshotError:
        found = None
    files = (path / name for name in FILES)
    return StoredSnapshot(
        path.name, found, sum(file.stat().st_blocks * 512 for file in files if file.is_file())
    )


def _time(entry: StoredSnapshot) -> float:
    return entry.manifest.origin.created_at if entry.manifest else float("inf")
