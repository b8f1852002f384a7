"""Writing a private file: whole or not at all, never wider than asked, never over another one."""

import os
import stat
from pathlib import Path

import pytest

from coatcheck.platform.private_files import (
    MAX_PRIVATE_FILE,
    PrivateFileError,
    check_private_directory,
    lock_directory,
    read_private,
    read_public,
    write_atomically,
)


def test_what_is_written_is_read_back_and_only_we_can(tmp_path: Path) -> None:
    """0600 under any umask; the directory holds nothing else afterwards."""
    before = os.umask(0)
    try:
        write_atomically(tmp_path / "key", b"content")
    finally:
        os.umask(before)
    assert read_private(tmp_path / "key") == b"content"
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["key"]


def test_a_strict_umask_does_not_make_a_public_file_private(tmp_path: Path) -> None:
    """Under the service's UMask=0077 a bundle must still be one that sandboxes can read."""
    before = os.umask(0o077)
    try:
        write_atomically(tmp_path / "bundle", b"content", mode=0o644)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "bundle").stat().st_mode) == 0o644
    assert read_public(tmp_path / "bundle") == b"content"


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_what_stands_there_is_not_overwritten_unasked(tmp_path: Path, kind: str) -> None:
    """Neither a file nor a link's target, and no temporary file stays behind."""
    target, path = tmp_path / "target", tmp_path / "key"
    if kind == "file":
        path.write_bytes(b"old")
    else:
        if kind == "link":
            target.write_bytes(b"old")
        path.symlink_to(target)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(FileExistsError):
        write_atomically(path, b"new")
    assert sorted(tmp_path.iterdir()) == before
    assert not path.exists() or path.read_bytes() == b"old"


def test_overwriting_replaces_a_link_and_not_what_it_points_to(tmp_path: Path) -> None:
    """Else a planted link would choose which file we write."""
    (tmp_path / "victim").write_bytes(b"theirs")
    (tmp_path / "bundle").symlink_to(tmp_path / "victim")
    write_atomically(tmp_path / "bundle", b"ours", overwrite=True)
    assert (tmp_path / "victim").read_bytes() == b"theirs"
    assert not (tmp_path / "bundle").is_symlink() and (tmp_path / "bundle").read_bytes() == b"ours"


def test_a_file_larger_than_any_key_is_refused(tmp_path: Path) -> None:
    """The largest one still allowed is read."""
    write_atomically(tmp_path / "key", b"x" * MAX_PRIVATE_FILE)
    assert len(read_private(tmp_path / "key")) == MAX_PRIVATE_FILE
    write_atomically(tmp_path / "key", b"x" * (MAX_PRIVATE_FILE + 1), overwrite=True)
    with pytest.raises(PrivateFileError, match="larger"):
        read_private(tmp_path / "key")


def test_a_missing_directory_is_an_error_with_a_command(tmp_path: Path) -> None:
    """What to type next."""
    with pytest.raises(PrivateFileError, match="does not exist") as refusal:
        check_private_directory(tmp_path / "none")
    assert "mkdir -m 0700" in refusal.value.hint


def test_a_locked_directory_is_waited_for_and_then_given_up(tmp_path: Path) -> None:
    """A second caller is told after its time; once the first is done, it gets the lock."""
    first = lock_directory(tmp_path, 0)
    with pytest.raises(PrivateFileError, match="another process"):
        lock_directory(tmp_path, 0.05)
    os.close(first)
    os.close(lock_directory(tmp_path, 0))
