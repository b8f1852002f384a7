"""Directories: contents, names, links and attributes; and which ones a process can write."""

import os
from pathlib import Path

import pytest

from coatcheck.inspection.trees import Mount, Mounts, mounts, search_path, search_tree
from tests.inspection.planted import SECRET, findings, region, scan_of


def search(top: Path) -> tuple[list[dict[str, object]], dict[str, int], int]:
    scan, told = scan_of()
    searched = region()
    search_tree(scan, searched, str(top), set())
    assert SECRET not in repr(told)
    return findings(told), searched.unread, searched.items


def test_contents_names_links_and_attributes_are_searched(tmp_path: Path) -> None:
    """Each is a place to keep a secret in; and a finding names the inode, since a name may be the secret."""
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/notes.txt").write_text(f"key: {SECRET}\n")
    (tmp_path / f"a/{SECRET}").touch()
    os.symlink(f"/nowhere/{SECRET}", tmp_path / "link")
    attributed = tmp_path / "attributed"
    attributed.touch()
    os.setxattr(attributed, "user.x", SECRET.encode())
    os.setxattr(tmp_path / "a/b", "user.x", SECRET.encode())
    hits, unread, items = search(tmp_path)
    inode = (tmp_path / "a/b/notes.txt").stat().st_ino
    wanted = {f"inode {inode}"} | {
        f"names in directory inode {each.stat().st_ino}"
        for each in (tmp_path, tmp_path / "a", tmp_path / "a/b")
    }
    assert {str(hit["item"]) for hit in hits} == wanted and len(hits) == 5
    assert unread == {} and items == 3


def test_a_link_out_of_the_sandbox_is_not_followed(tmp_path: Path) -> None:
    """Files of the host are none of its residues, and /dev/zero has no end."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text(SECRET)
    inside = tmp_path / "inside"
    inside.mkdir()
    os.symlink(outside, inside / "directory")
    os.symlink(outside / "secret", inside / "file")
    os.symlink("/dev/zero", inside / "zero")
    os.mkfifo(inside / "fifo")
    assert search(inside) == ([], {}, 0)


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    """Neither skipped in silence nor a reason to stop."""
    assert search(tmp_path / "missing")[1] == {"a directory cannot be read (No such file or directory)": 1}
    scan, _ = scan_of()
    searched = region()
    os.symlink("/etc/passwd", tmp_path / "link")
    search_path(scan, searched, str(tmp_path / "link"))
    search_path(scan, searched, "/dev/null")
    assert searched.unread == {
        "it cannot be opened (Too many levels of symbolic links)": 1,
        "it is neither a file nor a disk": 1,
    }


def test_a_descriptor_that_a_process_has_open_is_searched() -> None:
    """A guest's memory is a file in memory, which has no other name."""
    memory = os.memfd_create("guest")
    os.write(memory, b"." * 5000 + SECRET.encode())
    scan, told = scan_of()
    searched = region()
    search_path(scan, searched, f"/proc/{os.getpid()}/fd/{memory}")
    os.close(memory)
    assert [hit["offset"] for hit in findings(told)] == [5000] and searched.unread == {}


@pytest.mark.parametrize(
    ("kind", "writable", "may_hold", "safe"),
    [
        ("tmpfs", True, True, True),
        ("tmpfs", False, True, True),  # remounted after something was put there
        ("ext4", True, True, True),
        ("ext4", False, False, True),
        ("fuse.sshfs", True, True, False),
        ("9p", True, True, False),
        ("proc", True, False, False),
        ("cgroup2", True, False, False),
    ],
)
def test_which_mounts_may_hold_something(kind: str, writable: bool, may_hold: bool, safe: bool) -> None:
    """And which can be looked into without asking a process that is paused."""
    mount = Mount(("0:1", "/"), "/x", kind, writable)
    assert (mount.may_hold, mount.safe) == (may_hold, safe)


def test_a_processs_mounts_are_found_through_it() -> None:
    """Its root, as it sees it."""
    found = mounts(os.getpid())
    assert any(mount.path.rstrip("/") == f"/proc/{os.getpid()}/root" for mount in found)
    assert any(mount.kind == "proc" for mount in found)


def test_a_tree_is_searched_once(tmp_path: Path) -> None:
    """A directory that the launcher names, and that a process has mounted, is one place."""
    (tmp_path / "x").write_text(SECRET)
    scan, told = scan_of()
    known = set[tuple[int, int]]()
    for _ in range(2):
        search_tree(scan, region(), str(tmp_path), known)
    assert len(findings(told)) == 1


def test_the_hosts_own_files_are_none_of_a_sandboxs() -> None:
    """A process on the host's own mounts is not searched through all of the host's disk."""
    scan, told = scan_of()
    searched = region()
    Mounts().search(scan, searched, os.getpid())
    assert findings(told) == [] and searched.read == 0 and searched.unread == {}
