"""A manifest is exactly what was signed, or it is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coatcheck.decision.session import Isolation
from coatcheck.durable.snapshots.manifest import (
    MAX_BYTES,
    NAME,
    Image,
    Manifest,
    Origin,
    SnapshotError,
    Surroundings,
    open_key,
    read,
    write,
)

KEY = bytes(32)
HERE = Surroundings(
    isolation=Isolation.EMULATED,
    memory_mib=192,
    cpus=1,
    disk_mib=64,
    volumes=0,
    balloon=False,
    qemu="11" * 32,
    qemu_version="7.2.22",
    kernel="22" * 32,
    initrd="33" * 32,
    root="44" * 32,
    processor="",
    tsc_khz=2_793_438,
)
MANIFEST = Manifest(
    origin=Origin("sbx_0123456789abcdef", ("ses_1", "ses_2"), 1795280977.25),
    generation=3,
    surroundings=HERE,
    memory=Image(8 << 20, ("aa" * 32, "")),
    devices=Image(60_000, ("bb" * 32,)),
    overlay=Image(4 << 20, ("cc" * 32,)),
)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """All of it, to the last fraction of a second."""
    write(tmp_path, MANIFEST, KEY)
    assert read(tmp_path, KEY) == MANIFEST
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


ALTERED: dict[str, Any] = {
    "its generation": lambda said: said.update(generation=2),
    "whose it is": lambda said: said["origin"].update(sandbox="sbx_another"),
    "whose handles are in it": lambda said: said["origin"].update(sessions=[]),
    "a digest": lambda said: said["memory"]["digests"].__setitem__(0, ""),
    "its isolation": lambda said: said["surroundings"].update(isolation="hardware"),
    "something added": lambda said: said.update(more=1),
    "something left out": lambda said: said.pop("format"),
    "its signature": lambda said: said.update(hmac="00" * 32),
    "a signature that is none": lambda said: said.update(hmac=None),
    "no signature": lambda said: said.pop("hmac"),
}


@pytest.mark.parametrize("alter", ALTERED.values(), ids=ALTERED.keys())
def test_an_altered_one_is_refused(tmp_path: Path, alter: Any) -> None:
    """Also with digests that match."""
    write(tmp_path, MANIFEST, KEY)
    said = json.loads((tmp_path / NAME).read_bytes())
    alter(said)
    (tmp_path / NAME).write_text(json.dumps(said))
    with pytest.raises(SnapshotError, match="was altered, or another daemon's key signed it"):
        read(tmp_path, KEY)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b"1" * (MAX_BYTES + 1)]
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    """Cut off, or never one."""
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(SnapshotError, match="was altered"):
        read(tmp_path, KEY)


def test_another_key_is_refused(tmp_path: Path) -> None:
    """A directory that was copied from another host."""
    write(tmp_path, MANIFEST, KEY)
    with pytest.raises(SnapshotError) as caught:
        read(tmp_path, b"\1" * 32)
    assert "sandbox import" in caught.value.hint


def test_another_format_is_refused(tmp_path: Path) -> None:
    """By its number: its fields may mean something else."""
    write(tmp_path, replace(MANIFEST, format=2), KEY)
    with pytest.raises(SnapshotError, match="has format 2, and this version reads 1"):
        read(tmp_path, KEY)


def test_a_directory_without_one_is_no_snapshot(tmp_path: Path) -> None:
    """It is written last."""
    with pytest.raises(SnapshotError, match="there is no complete snapshot"):
        read(tmp_path, KEY)


def test_the_key_is_made_once_and_for_us_only(tmp_path: Path) -> None:
    """Another one would make all snapshots worthless; who can read it can forge them."""
    path = tmp_path / "snapshots.key"
    key = open_key(path)
    assert open_key(path) == key
    assert len(key) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(SnapshotError, match="is open to other users"):
        open_key(path)


@pytest.mark.parametrize("content", ["", "00" * 31, "nothing of the kind"])
def test_a_key_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    """An empty one would be anybody's."""
    path = tmp_path / "snapshots.key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(SnapshotError, match="is no key"):
        open_key(path)


def test_a_key_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    """With its path."""
    with pytest.raises(SnapshotError, match=r"cannot be made: .*missing/snapshots.key"):
        open_key(tmp_path / "missing/snapshots.key")
