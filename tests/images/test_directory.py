"""A root that is read from a directory."""

import os
import socket
import stat
from pathlib import Path

import pytest

from coatcheck.images.directory import MAX_DEPTH, read_directory
from coatcheck.images.problem import ImageError
from coatcheck.images.spool import Spool
from coatcheck.images.tree import Tree


def read(root: Path, tmp_path: Path) -> tuple[Tree, list[str]]:
    tree, told = Tree(), list[str]()
    read_directory(root, tree, Spool(tmp_path / "spool"), told.append)
    return tree, told


def test_files_links_and_hard_links_are_as_they_are(root: Path, tmp_path: Path) -> None:
    """Links are never followed, so what they point to on this machine does not come along."""
    (root / "etc/shadow").symlink_to("/etc/shadow")
    os.link(root / "usr/bin/program", root / "usr/bin/other")
    tree, _ = read(root, tmp_path)
    shadow, program = tree.find("etc/shadow"), tree.find("usr/bin/program")
    assert shadow is not None and shadow.is_link and shadow.target == "/etc/shadow"
    assert program is tree.find("usr/bin/other") is not None
    assert program is not None and stat.S_IMODE(program.mode) == 0o755
    assert program.content is not None and program.content.read_bytes() == b"#!/bin/sh\n" * 5000


def test_what_is_its_users_belongs_to_root(root: Path, tmp_path: Path) -> None:
    """A normal user who unpacked a root owns all of it; in the guest that is nobody's wish."""
    tree, _ = read(root, tmp_path)
    assert {(node.uid, node.gid) for _, node in tree.walk()} == {(0, 0)}


def test_what_runs_on_this_machine_stays_here(root: Path, tmp_path: Path) -> None:
    """Sockets and pipes are left out and told; below dev, proc, sys and run nothing is read."""
    for name in ("dev", "proc", "run"):
        (root / name).mkdir()
        (root / name / "anything").touch()
    os.mkfifo(root / "etc/pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        before = Path.cwd()
        os.chdir(root)  # a socket's path is short
        try:
            bound.bind("sock")
        finally:
            os.chdir(before)
        tree, told = read(root, tmp_path)
    assert sorted(told) == ["left out etc/pipe: a socket or a pipe", "left out sock: a socket or a pipe"]
    assert tree.find("dev/anything") is None and tree.find("etc/pipe") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_a_device_is_refused(root: Path, tmp_path: Path) -> None:
    """The guest's disk under the name of a file would be everybody's."""
    os.mknod(root / "etc/disk", stat.S_IFBLK | 0o666, os.makedev(8, 0))
    with pytest.raises(ImageError, match="is a device"):
        read(root, tmp_path)


def test_a_path_without_end_is_refused(root: Path, tmp_path: Path) -> None:
    """Each level takes a descriptor and a call."""
    (root / "/".join("d" * (MAX_DEPTH + 5))).mkdir(parents=True)
    with pytest.raises(ImageError, match=f"more than {MAX_DEPTH} levels"):
        read(root, tmp_path)


def test_what_is_no_directory_is_told(tmp_path: Path) -> None:
    """A typing error, most often."""
    with pytest.raises(ImageError, match="cannot be read as a directory"):
        read(tmp_path / "nowhere", tmp_path)
