"""A snapshot is there whole, or not at all; and what is loaded from it is what was saved."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from coatcheck.durable.snapshots.directory import (
    DEVICES,
    FILES,
    MEMORY,
    OVERLAY,
    Snapshot,
    Unfinished,
    kept_in,
)
from coatcheck.durable.snapshots.manifest import NAME, Manifest, SnapshotError
from coatcheck.sandbox.machine import RemainKind
from tests.durable.snapshots.test_manifest import HERE, KEY, MANIFEST

MIB = 1024 * 1024
SECRET = b"in-memory-2718"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    kept = tmp_path / "snapshots"
    kept.mkdir(mode=0o700)
    return kept


@pytest.fixture
def source() -> Iterator[int]:
    descriptor = os.memfd_create("memory")
    os.ftruncate(descriptor, 8 * MIB)
    os.pwrite(descriptor, SECRET, 5 * MIB)
    yield descriptor
    os.close(descriptor)


def unfinished(directory: Path, source: int) -> Unfinished:
    files = Unfinished(directory, 8 * MIB)
    files.begin()
    for name in FILES:
        files.copy(name, source, 8 * MIB)
    return files


def saved(directory: Path, source: int) -> Manifest:
    return unfinished(directory, source).finish(MANIFEST.origin, 3, HERE, KEY)


def loaded(directory: Path, name: str = MEMORY) -> bytes:
    target = os.memfd_create("loaded")
    try:
        os.ftruncate(target, 8 * MIB)
        Snapshot(directory, KEY).load(name, target)
        return os.pread(target, 8 * MIB, 0)
    finally:
        os.close(target)


def test_what_was_saved_is_loaded(place: Path, source: int) -> None:
    """Each file, and the manifest as `finish` returned it."""
    manifest = saved(place / "one", source)
    assert Snapshot(place / "one", KEY).manifest == manifest
    assert all(loaded(place / "one", name) == os.pread(source, 8 * MIB, 0) for name in FILES)
    assert {path.name: path.stat().st_mode & 0o777 for path in (place / "one").iterdir()} == dict.fromkeys(
        (*FILES, NAME), 0o600
    )
    assert (place / "one").stat().st_mode & 0o777 == 0o700


def test_it_is_not_there_before_it_is_finished(place: Path, source: int) -> None:
    """A reader meanwhile, or after a crash, finds no snapshot; given up, nothing."""
    files = unfinished(place / "one", source)
    assert not (place / "one").exists()
    files.discard()
    files.discard()
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_is_refused(place: Path, source: int, name: str) -> None:
    """In whichever file."""
    saved(place / "one", source)
    with (place / "one" / name).open("r+b") as file:
        file.seek(5 * MIB + 3)
        file.write(b"!")
    with pytest.raises(SnapshotError, match=f"the {name} of the snapshot one is damaged"):
        loaded(place / "one", name)


def test_a_truncated_file_is_refused(place: Path, source: int) -> None:
    """By its length, even where what is cut off was zero."""
    saved(place / "one", source)
    os.truncate(place / "one" / MEMORY, 6 * MIB)
    with pytest.raises(SnapshotError, match=f"it has {6 * MIB} bytes, and {8 * MIB} were written"):
        loaded(place / "one")


def test_a_file_of_another_snapshot_is_refused(place: Path, source: int) -> None:
    """Both are genuine; together they are no machine."""
    saved(place / "one", source)
    os.pwrite(source, b"later", 0)
    saved(place / "two", source)
    shutil.copy(place / "one" / DEVICES, place / "two" / DEVICES)
    with pytest.raises(SnapshotError, match="the devices of the snapshot two is damaged"):
        Snapshot(place / "two", KEY).load_devices()


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_linked_file_is_refused(place: Path, source: int, name: str) -> None:
    """A symbolic link could show another file when it is opened again."""
    saved(place / "one", source)
    (place / "one" / name).rename(place / "moved")
    for _ in range(2):
        with pytest.raises(SnapshotError, match=f"the {name} of the snapshot one cannot be loaded"):
            loaded(place / "one", name)
        if not (place / "one" / name).is_symlink():
            (place / "one" / name).symlink_to(place / "moved")


def test_a_name_that_is_taken_is_refused(place: Path, source: int) -> None:
    """The one that is there stays as it was."""
    saved(place / "one", source)
    with pytest.raises(SnapshotError, match="there is a snapshot one already"):
        Unfinished(place / "one", MIB).begin()
    assert loaded(place / "one")[5 * MIB :].startswith(SECRET)


def test_a_place_that_others_can_read_is_refused(place: Path) -> None:
    """All that a sandbox knew is in there."""
    place.chmod(0o755)
    with pytest.raises(SnapshotError, match="is open to other users"):
        Unfinished(place / "one", MIB).begin()


def test_too_little_space_is_said_before_anything_stops(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With how much is needed, what stays free for the audit log, and what to do."""
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=100, f_frsize=MIB))
    said = "about 60 MiB are needed beside the 41 MiB that stay free"
    with pytest.raises(SnapshotError, match=said) as caught:
        Unfinished(place / "one", 60 * MIB, 41).begin()
    assert "coatcheck sandbox snapshots" in caught.value.hint
    assert list(place.iterdir()) == []
    Unfinished(place / "one", 60 * MIB, 40).begin()


_FULL = """
import os, sys
from pathlib import Path
from coatcheck.durable.snapshots import directory
from coatcheck.durable.snapshots.manifest import SnapshotError
source = os.memfd_create("memory")
os.ftruncate(source, 8 << 20)
os.pwrite(source, b"x" * (6 << 20), 0)
files = directory.Unfinished(Path("/mnt/full/one"), 1 << 20, 0)
files.begin()
try:
    files.copy("memory", source, 8 << 20)
except SnapshotError as error:
    print(error)
files.discard()
print(os.listdir("/mnt/full"))
"""


@pytest.mark.needs_debian("bwrap")
def test_a_disk_that_fills_up_meanwhile_is_said() -> None:
    """Others write, too. Here it has 4 MiB, for real."""
    command = ["bwrap", "--unshare-user", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev"]
    command += ["--proc", "/proc", "--tmpfs", "/mnt", "--perms", "0700", "--size", str(4 * MIB)]
    command += ["--tmpfs", "/mnt/full", sys.executable, "-c", _FULL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said, left = done.stdout.splitlines()
    assert said.startswith("there is no space for a snapshot in /mnt/full: about 1 MiB are needed")
    assert left == "[]"


def test_a_failure_while_it_is_finished_leaves_nothing(
    place: Path, source: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk says at the last moment that it could not write."""
    files = unfinished(place / "one", source)

    def failing(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(SnapshotError, match="there is no space for a snapshot"):
        files.finish(MANIFEST.origin, 1, HERE, KEY)
    assert list(place.iterdir()) == []


def test_a_template_cannot_be_changed_by_whoever_maps_it(place: Path, source: int) -> None:
    """Not through the descriptor, not by opening it anew, not by cutting or punching it."""
    saved(place / "one", source)
    template = Snapshot(place / "one", KEY).template()
    try:
        assert os.pread(template, len(SECRET), 5 * MIB) == SECRET
        again = os.open(f"/proc/self/fd/{template}", os.O_RDWR)
        try:
            for descriptor in (template, again):
                for attempt in (
                    lambda file: os.pwrite(file, b"x", 0),
                    lambda file: os.ftruncate(file, 0),
                    lambda file: os.ftruncate(file, 16 * MIB),
                    lambda file: os.posix_fallocate(file, 0, 16 * MIB),
                ):
                    with pytest.raises(PermissionError):
                        attempt(descriptor)
        finally:
            os.close(again)
    finally:
        os.close(template)


def test_every_file_is_for_inspection(place: Path, source: int) -> None:
    """What is being written as well: a secret that is only there is there."""
    saved(place / "one", source)
    unfinished(place / "two", source)
    remains = kept_in(place, None)
    assert len(remains) == len(FILES) + 1 + len(FILES)
    kinds = {remain.name: remain.kind for remain in remains}
    assert kinds["snapshot one: memory"] is RemainKind.MEMORY
    assert kinds["snapshot one: devices"] is RemainKind.DEVICE_STATE
    assert kinds["snapshot one: overlay"] is RemainKind.DISK
    assert kinds["snapshot one: manifest.json"] is RemainKind.FILE
    assert all(len(name) <= 100 for name in kinds)
    assert OVERLAY in {remain.path.name for remain in remains if remain.path}
