"""A snapshot goes to another host as it is, or not at all: every cut and every changed byte of the stream."""

import io
import json
import os
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from coatcheck.durable.snapshots import archive
from coatcheck.durable.snapshots.archive import MAGIC, export, record, take
from coatcheck.durable.snapshots.directory import FILES, MEMORY, Snapshot
from coatcheck.durable.snapshots.manifest import Manifest, SnapshotError
from tests.debian import need
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


SEALED = 64 * 1024 + 16
"""age's chunk, and its tag."""


HEADER = len(MAGIC) + 16
"""Where the age file begins."""


def body_of(exported: bytes) -> int:
    """Where its first chunk begins: after age's header and nonce."""
    return exported.index(b"\n", exported.index(b"\n--- ", HEADER) + 1) + 1 + 16


def flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def spoil(content: bytes, where: str) -> bytes:
    body = body_of(content)
    first, second = content[body : body + SEALED], content[body + SEALED : body + 2 * SEALED]
    rest = content[body + 2 * SEALED :]
    changed: dict[str, Callable[[], bytes]] = {
        "magic": lambda: b"x" + content[1:],
        "salt": lambda: flip(content, len(MAGIC)),
        "age's version": lambda: flip(content, HEADER + 20),
        "the key's stanza": lambda: flip(content, content.index(b"-> ssh-ed25519 ", HEADER) + 30),
        "the header's MAC": lambda: flip(content, content.index(b"\n--- ", HEADER) + 10),
        "the nonce": lambda: flip(content, body - 1),
        "a byte": lambda: flip(content, body + SEALED + 77),
        "swapped chunks": lambda: content[:body] + second + first + rest,
        "a chunk twice": lambda: content[:body] + first + first + second + rest,
        "a chunk less": lambda: content[:body] + second + rest,
        "cut at a chunk": lambda: content[: body + 2 * SEALED],
        "cut within a chunk": lambda: content[:-1],
        "cut before its body": lambda: content[:body],
        "cut within age's header": lambda: content[: HEADER + 40],
        "cut before age's header": lambda: content[:HEADER],
        "cut within the salt": lambda: content[: len(MAGIC) + 9],
        "nothing": lambda: b"",
        "more at its end": lambda: content + b"x",
    }
    return changed[where]()


@pytest.mark.parametrize(
    "where",
    [
        *("magic", "salt", "age's version", "the key's stanza", "the header's MAC", "the nonce", "a byte"),
        *("swapped chunks", "a chunk twice", "a chunk less", "cut at a chunk", "cut within a chunk"),
        *("cut before its body", "cut within age's header", "cut before age's header"),
        *("cut within the salt", "nothing", "more at its end"),
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
    "two manifests": [(0, 0, b"{}")],
    "a record too long": [(1, 0, bytes(4 * MIB + 1))],
    "more after its end": [],
    "an end within a record": [],
}


@pytest.mark.parametrize("case", RECORDS)
def test_an_archive_of_somebody_who_knows_the_passphrase_is_bounded_as_well(
    snapshot: Snapshot, place: Path, case: str
) -> None:
    """It must not write outside of its files, nor be taken without its end."""
    records = [] if "manifest" in case else [record(0, 0, whole_manifest(snapshot))]
    records += [record(*one) for one in RECORDS[case]]
    if case != "no end":
        records.append(record(255, 0, b""))
    if case == "more after its end":
        records.append(record(1, 0, b"x"))
    if case == "an end within a record":
        records[-1:] = [record(1, 0, b"xyz")[:-1]]
    target = io.BytesIO(MAGIC + bytes(16))
    target.seek(0, os.SEEK_END)
    archive.encrypt(iter(records), target, archive.derive(bytes(16), PASSPHRASE))
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


def test_age_opens_it(exported: bytes, tmp_path: Path) -> None:
    """No cryptography of ours: another program, with the same key, finds our records."""
    need("age")
    key = tmp_path / "key"
    key.write_bytes(
        archive.derive(exported[len(MAGIC) : HEADER], PASSPHRASE).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )
    done = subprocess.run(
        ["age", "--decrypt", "--identity", str(key)], input=exported[HEADER:], capture_output=True, check=True
    )
    assert done.stdout[13:].startswith(b'{"origin": ')


def test_who_has_no_passphrase_cannot_write_one(exported: bytes) -> None:
    """Anybody can encrypt to a public key. This one is not in the file: only 4 bytes of its hash are."""
    public = archive.derive(exported[len(MAGIC) : HEADER], PASSPHRASE).public_key()
    raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    assert raw not in exported
    assert b64encode(raw).rstrip(b"=") not in exported


class Failing(io.BytesIO):
    """Takes the header, and then the disk is full."""

    def write(self, content: object) -> int:
        if self.tell() > 1000:
            raise OSError(28, "No space left on device")
        return super().write(content)  # type: ignore[arg-type]


def test_what_cannot_be_written_or_read_says_why(snapshot: Snapshot, exported: bytes, place: Path) -> None:
    """age would tell it as text, and a person would look for a wrong passphrase."""
    with pytest.raises(OSError, match="No space left on device"):
        export(snapshot, Failing(), PASSPHRASE)
    with pytest.raises(SnapshotError, match="there is no space for a snapshot"):
        take(io.BytesIO(exported), place / "two", "sbx_theirs", PASSPHRASE, THEIRS, reserve_mib=1 << 40)
    (place / "two").mkdir()
    with pytest.raises(SnapshotError, match="there is a snapshot two already"):
        taken(exported, place)


def test_it_streams() -> None:
    """A snapshot of gigabytes goes out through a little memory."""
    key = archive.derive(bytes(16), PASSPHRASE)
    piece = record(1, 0, os.urandom(MIB))
    sizes = []

    class Target(io.RawIOBase):
        def write(self, content: object) -> int:
            sizes.append(len(content))  # type: ignore[arg-type]
            return sizes[-1]

    archive.encrypt((piece for _ in range(64)), Target(), key)  # type: ignore[arg-type]
    assert sum(sizes) > 64 * MIB
    assert max(sizes) <= MIB
