"""A snapshot goes to another host as it is, or not at all: every cut and every changed byte of the stream."""

import io
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from coatcheck.durable.snapshots import archive
from coatcheck.durable.snapshots.archive import CHUNK, MAGIC, export, take
from coatcheck.durable.snapshots.directory import FILES, MEMORY, Snapshot
from coatcheck.durable.snapshots.manifest import Manifest, SnapshotError
from tests.durable.snapshots.test_manifest import KEY
from tests.system.durable.snapshots.test_directory import SECRET, loaded, saved

PASSPHRASE = b"correct horse battery staple"
THEIRS = b"\7" * 32
MIB = 1024 * 1024


@pytest.fixture(scope="module", autouse=True)
def cheap() -> Iterator[None]:
    """A guess costs what it costs; these tests make thirty."""
    assert archive.COST == 1 << 17
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(archive, "COST", 16)
        yield


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The other host's."""
    kept = tmp_path / "snapshots"
    kept.mkdir(mode=0o700)
    return kept


@pytest.fixture(scope="module")
def source() -> Iterator[int]:
    descriptor = os.memfd_create("memory")
    os.ftruncate(descriptor, 8 * MIB)
    os.pwrite(descriptor, SECRET, 5 * MIB)
    os.pwrite(descriptor, os.urandom(3 * MIB), MIB)
    yield descriptor
    os.close(descriptor)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory, source: int) -> Snapshot:
    kept = tmp_path_factory.mktemp("ours")
    kept.chmod(0o700)
    saved(kept / "one", source)
    return Snapshot(kept / "one", KEY)


@pytest.fixture(scope="module")
def exported(snapshot: Snapshot) -> bytes:
    target = io.BytesIO()
    export(snapshot, target, PASSPHRASE)
    return target.getvalue()


def taken(content: bytes, place: Path, passphrase: bytes = PASSPHRASE) -> Manifest:
    return take(io.BytesIO(content), place / "two", "sbx_theirs", passphrase, THEIRS)


def test_it_arrives_as_it_was(snapshot: Snapshot, exported: bytes, place: Path, source: int) -> None:
    """Every file; signed by the other host, and its own: no session of ours is there."""
    manifest = taken(exported, place)
    assert manifest == replace(
        snapshot.manifest, origin=replace(snapshot.manifest.origin, sandbox="sbx_theirs", sessions=())
    )
    there = Snapshot(place / "two", THEIRS)
    assert there.manifest == manifest
    target = os.memfd_create("loaded")
    try:
        for name in FILES:
            os.ftruncate(target, 0)
            os.ftruncate(target, 8 * MIB)
            there.load(name, target)
            assert os.pread(target, 8 * MIB, 0) == os.pread(source, 8 * MIB, 0)
    finally:
        os.close(target)


def test_nothing_in_it_can_be_read(exported: bytes) -> None:
    """It holds all that a sandbox knew; zeros take no room in it."""
    assert SECRET not in exported
    assert b"sbx_" not in exported
    assert b"memory" not in exported
    assert len(exported) < 3 * (3 * MIB) + 2 * MIB


def test_another_passphrase_is_refused(exported: bytes, place: Path) -> None:
    """And nothing is left."""
    with pytest.raises(SnapshotError, match="its passphrase is another, or it was altered"):
        taken(exported, place, b"incorrect horse battery staple")
    assert list(place.iterdir()) == []


def test_a_short_passphrase_is_refused_on_both_sides(
    snapshot: Snapshot, exported: bytes, place: Path
) -> None:
    """It would be found by trying."""
    with pytest.raises(SnapshotError, match="has 15 characters, and 16 are the least"):
        export(snapshot, io.BytesIO(), b"x" * 15)
    with pytest.raises(SnapshotError, match="has 15 characters"):
        taken(exported, place, b"x" * 15)


def spoil(content: bytes, where: str) -> bytes:
    header = len(MAGIC) + 16 + 7
    sealed = CHUNK + 16
    first, second = content[header : header + sealed], content[header + sealed : header + 2 * sealed]
    rest = content[header + 2 * sealed :]
    changed = {
        "magic": b"x" + content[1:],
        "salt": content[: len(MAGIC)] + bytes([content[len(MAGIC)] ^ 1]) + content[len(MAGIC) + 1 :],
        "prefix": content[: header - 1] + bytes([content[header - 1] ^ 1]) + content[header:],
        "a byte": content[: header + sealed + 77]
        + bytes([content[header + sealed + 77] ^ 1])
        + content[header + sealed + 78 :],
        "swapped chunks": content[:header] + second + first + rest,
        "a chunk twice": content[:header] + first + first + second + rest,
        "a chunk less": content[:header] + second + rest,
        "cut at a chunk": content[: header + 2 * sealed],
        "cut within a chunk": content[:-1],
        "cut within the header": content[: header - 3],
        "nothing": b"",
        "more at its end": content + b"x",
    }
    return changed[where]


@pytest.mark.parametrize(
    "where",
    [
        *("magic", "salt", "prefix", "a byte", "swapped chunks", "a chunk twice", "a chunk less"),
        *("cut at a chunk", "cut within a chunk", "cut within the header", "nothing", "more at its end"),
    ],
)
def test_what_is_not_whole_is_refused(exported: bytes, place: Path, where: str) -> None:
    """Altered, swapped, repeated, cut off, grown: and nothing is left of it."""
    with pytest.raises(SnapshotError, match="the archive cannot be taken"):
        taken(spoil(exported, where), place)
    assert list(place.iterdir()) == []


def test_a_damaged_snapshot_is_not_exported(snapshot: Snapshot, place: Path, source: int) -> None:
    """Else the other host would sign what is no snapshot; what was written by then is refused there."""
    saved(place / "one", source)
    with (place / "one" / MEMORY).open("r+b") as file:
        file.seek(5 * MIB)
        file.write(b"!")
    target = io.BytesIO()
    with pytest.raises(SnapshotError, match="the memory of the snapshot one is damaged"):
        export(Snapshot(place / "one", KEY), target, PASSPHRASE)
    with pytest.raises(SnapshotError, match="the archive cannot be taken"):
        taken(target.getvalue(), place)


RECORDS = {
    "no manifest": [(1, 0, b"x")],
    "a manifest that is none": [(0, 0, b"{}")],
    "an unknown file": [(9, 0, b"x")],
    "bytes outside": [(1, 8 * MIB, b"x")],
    "no end": [],
}


@pytest.mark.parametrize("case", RECORDS)
def test_an_archive_of_somebody_who_knows_the_passphrase_is_bounded_as_well(
    snapshot: Snapshot, place: Path, case: str
) -> None:
    """It must not write outside of its files, nor be taken without its end."""
    target = io.BytesIO()
    sealed = archive._Sealing(target, PASSPHRASE)
    if "manifest" not in case:
        sealed.record(0, 0, whole_manifest(snapshot))
    for record in RECORDS[case]:
        sealed.record(*record)
    sealed.finish()
    with pytest.raises(SnapshotError, match="the archive cannot be taken"):
        taken(target.getvalue(), place)
    assert list(place.iterdir()) == []


def whole_manifest(snapshot: Snapshot) -> bytes:
    return json.dumps(asdict(snapshot.manifest)).encode()


def test_what_arrived_can_be_loaded_here(exported: bytes, place: Path) -> None:
    """With our key it is another's, and stays refused."""
    taken(exported, place)
    with pytest.raises(SnapshotError, match="another daemon's key signed it"):
        loaded(place / "two")
