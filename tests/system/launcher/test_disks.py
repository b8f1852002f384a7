"""Disks as files: sparse, bounded, and one sandbox's at a time."""

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from coatcheck.launcher.disks import make_memory, make_overlay, make_volume, open_volume, volume_file
from coatcheck.sandbox.machine import MachineError, Volume

pytestmark = pytest.mark.needs_debian("mke2fs")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    place = tmp_path / "volumes"
    place.mkdir(mode=0o700)
    return place


def volume(store: Path, name: str = "work", tenant: str = "acme", size_mib: int = 32) -> Volume:
    return Volume(store, tenant, name, "/work", size_mib)


async def test_an_overlay_is_an_empty_ext4_that_takes_no_room(tmp_path: Path) -> None:
    """A disk of gigabytes is made in milliseconds, with nothing left for the guest to initialise."""
    descriptor = await make_overlay(tmp_path / "overlay", 2048)
    os.close(descriptor)
    about = (tmp_path / "overlay").stat()
    assert about.st_size == 2048 << 20
    assert about.st_blocks * 512 < 4 << 20
    assert about.st_mode & 0o777 == 0o600
    checked = subprocess.run(
        ["/usr/sbin/e2fsck", "-fn", str(tmp_path / "overlay")], check=False, capture_output=True
    )
    assert checked.returncode == 0, checked.stdout
    told = subprocess.run(
        ["/usr/sbin/dumpe2fs", "-h", str(tmp_path / "overlay")], check=True, capture_output=True
    )
    assert b"has_journal" not in told.stdout


async def test_a_volume_is_locked_while_any_copy_of_it_is_open(store: Path) -> None:
    """Two guests that write to one ext4 destroy it. QEMU's copy holds it even when we are killed."""
    first = await open_volume(volume(store))
    copy = os.dup(first)
    os.close(first)
    with pytest.raises(MachineError, match="in use by another sandbox"):
        await open_volume(volume(store))
    os.close(copy)
    os.close(await open_volume(volume(store)))


async def test_a_volume_keeps_what_is_in_it(store: Path) -> None:
    """It is formatted once."""
    first = await open_volume(volume(store))
    os.pwrite(first, b"mine", 8 << 20)
    os.close(first)
    second = await open_volume(volume(store))
    assert os.pread(second, 4, 8 << 20) == b"mine"
    os.close(second)


async def test_tenants_do_not_share_a_name(store: Path) -> None:
    """Whatever a tenant is called, path separators included."""
    opened = [await open_volume(volume(store, tenant=tenant)) for tenant in ("acme", "../acme", "a/b", "")]
    files = {os.fstat(descriptor).st_ino for descriptor in opened}
    for descriptor in opened:
        os.close(descriptor)
    assert len(files) == 4
    assert all(path.parent.parent == store for path in store.rglob("*.ext4"))


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".hidden", "A", "x" * 65, "a\n", "ä"])
def test_a_name_is_no_path(store: Path, name: str) -> None:
    """It comes from a caller."""
    with pytest.raises(MachineError, match="not a volume name"):
        volume_file(volume(store, name))


async def test_a_volume_above_the_ceiling_is_refused(store: Path) -> None:
    """A ceiling that was lowered holds for disks that exist."""
    os.close(await open_volume(volume(store, size_mib=64)))
    with pytest.raises(MachineError, match="has 64 MiB, more than the 32"):
        await open_volume(volume(store, size_mib=32))


async def test_nothing_else_is_taken_for_a_volume(store: Path) -> None:
    """A symbolic link in the store would open any file of the host to a guest."""
    path = volume_file(volume(store))
    path.parent.mkdir(mode=0o700)
    path.symlink_to("/etc/passwd")
    with pytest.raises(MachineError, match="cannot be opened"):
        await open_volume(volume(store))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(MachineError, match="not a regular file"):
        await open_volume(volume(store))


async def test_an_open_store_is_refused(store: Path) -> None:
    """Others could read what sandboxes keep, or put a disk there."""
    store.chmod(0o755)
    with pytest.raises(MachineError, match="open to other users"):
        await open_volume(volume(store))


@pytest.mark.parametrize("size", [0, 15, 2 * 1024 * 1024])
async def test_a_size_that_is_none_is_refused(tmp_path: Path, size: int) -> None:
    """Before a file is made."""
    with pytest.raises(MachineError, match="a disk cannot have"):
        await make_overlay(tmp_path / "overlay", size)
    assert list(tmp_path.iterdir()) == []


async def test_a_full_host_disk_is_said_before_the_guest_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later it would be an error of writing in the guest, which knows no reason."""
    monkeypatch.setattr(os, "statvfs", lambda directory: SimpleNamespace(f_bavail=50, f_frsize=1 << 20))
    with pytest.raises(MachineError, match=r"50 MiB free, and 64 are needed"):
        await make_overlay(tmp_path / "overlay", 512)
    assert list(tmp_path.iterdir()) == []


def test_more_memory_than_there_is_is_said_before_the_guest_runs() -> None:
    """Later the kernel would end a process, and not always the one that asked."""
    with pytest.raises(MachineError, match="MiB of memory left, and 1073741824 are needed"):
        make_memory(1 << 30, None, 1 << 30)


def test_memory_takes_no_room_until_it_is_used_and_keeps_its_size() -> None:
    """QEMU can neither grow it nor cut it away; nobody else may open it."""
    descriptor = make_memory(64, None, 64)
    try:
        about = os.fstat(descriptor)
        assert (about.st_size, about.st_blocks, about.st_mode & 0o777) == (64 << 20, 0, 0o600)
        for size in (0, 128 << 20):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


async def test_a_missing_mke2fs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the package to install."""
    monkeypatch.setattr(shutil, "which", lambda program, path: None)
    with pytest.raises(MachineError, match="mke2fs is missing") as caught:
        await make_overlay(tmp_path / "overlay", 32)
    assert "e2fsprogs" in caught.value.hint


async def test_a_volume_can_be_made_with_what_is_in_it(store: Path, tmp_path: Path) -> None:
    """It is then used as any other; one that is there is not written over."""
    content = tmp_path / "content"
    content.mkdir()
    (content / "program").write_bytes(b"#!/bin/sh\n")
    await make_volume(volume(store), content)
    told = subprocess.run(
        ["/usr/sbin/debugfs", "-R", "cat /program", str(volume_file(volume(store)))],
        check=True,
        capture_output=True,
    )
    assert told.stdout == b"#!/bin/sh\n"
    os.close(await open_volume(volume(store)))
    with pytest.raises(MachineError, match="already exists"):
        await make_volume(volume(store), content)


async def test_what_does_not_fit_into_a_volume_makes_none(store: Path, tmp_path: Path) -> None:
    """A volume is whole, or is not there."""
    content = tmp_path / "content"
    content.mkdir()
    (content / "program").write_bytes(os.urandom(33 << 20))
    with pytest.raises(MachineError, match="could not be made"):
        await make_volume(volume(store), content)
    assert list(volume_file(volume(store)).parent.iterdir()) == []
