"""What is sealed can be read and made by daemons with the key, in its place, and by nobody else."""

import os
from pathlib import Path

import pytest

from coatcheck.fleet.seal import MAX_SEALERS, Seal, SealBroken, read_key
from coatcheck.platform.private_files import PrivateFileError

KEY = bytes(range(32))


def test_another_process_with_the_key_opens_it() -> None:
    """Each seals under its own derived key."""
    sealed = Seal(KEY, "web").seal("entry|1|2", b"content")
    assert Seal(KEY, "web").open("entry|1|2", sealed) == b"content"
    assert b"content" not in sealed


@pytest.mark.parametrize(
    ("key", "fleet", "place"),
    [(bytes(32), "web", "entry|1|2"), (KEY, "other", "entry|1|2"), (KEY, "web", "entry|1|3")],
)
def test_with_another_key_fleet_or_place_nobody_does(key: bytes, fleet: str, place: str) -> None:
    """A record cannot be moved."""
    sealed = Seal(KEY, "web").seal("entry|1|2", b"content")
    with pytest.raises(SealBroken):
        Seal(key, fleet).open(place, sealed)


def test_every_changed_or_missing_byte_is_noticed() -> None:
    """Of salt, nonce, content and tag."""
    seal = Seal(KEY, "web")
    sealed = seal.seal("p", b"content")
    for at in range(len(sealed)):
        with pytest.raises(SealBroken):
            seal.open("p", sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :])
        with pytest.raises(SealBroken):
            seal.open("p", sealed[:at])


def test_no_nonce_comes_twice_under_one_key() -> None:
    """Twice the same content in the same place is two different records."""
    seal = Seal(KEY, "web")
    assert len({seal.seal("p", b"content")[:28] for _ in range(1000)}) == 1000
    assert Seal(KEY, "web").seal("p", b"x")[:16] != Seal(KEY, "web").seal("p", b"x")[:16]


def test_keys_of_many_processes_are_kept_within_bounds() -> None:
    """Who writes salts at random fills no memory."""
    seal = Seal(KEY, "web")
    for _ in range(MAX_SEALERS + 10):
        with pytest.raises(SealBroken):
            seal.open("p", os.urandom(64))
    assert seal.key_of.cache_info().currsize == MAX_SEALERS


def test_a_key_is_64_digits_in_a_file_that_others_cannot_read(tmp_path: Path) -> None:
    """As `openssl rand -hex 32` writes it; group-readable as Kubernetes mounts a secret."""
    file = tmp_path / "key"
    file.write_text(KEY.hex() + "\n")
    for mode in (0o600, 0o400, 0o440):
        file.chmod(mode)
        assert read_key(file) == KEY
    for mode in (0o644, 0o660, 0o602):
        file.chmod(mode)
        with pytest.raises(PrivateFileError, match="open to other users"):
            read_key(file)


@pytest.mark.parametrize("content", ["", "ab", KEY.hex()[:-1], KEY.hex() + "00", "z" * 64, "é" * 32])
def test_anything_else_is_no_key(tmp_path: Path, content: str) -> None:
    """And says how to make one."""
    file = tmp_path / "key"
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(PrivateFileError) as refused:
        read_key(file)
    assert "openssl rand -hex 32" in refused.value.hint
    with pytest.raises(PrivateFileError):
        read_key(tmp_path)
    with pytest.raises(PrivateFileError):
        read_key(tmp_path / "none")


def test_a_key_of_another_length_is_refused() -> None:
    """AES-256 and nothing less."""
    with pytest.raises(ValueError, match="16 bytes"):
        Seal(bytes(16), "web")
