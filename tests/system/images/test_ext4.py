"""The filesystem that comes out, seen by e2fsprogs."""

import hashlib
import multiprocessing
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from coatcheck.images import ext4, programs
from coatcheck.images.debian import put_file
from coatcheck.images.problem import ImageError
from coatcheck.images.spool import Spool
from coatcheck.images.tree import Tree, directory, file, link
from tests.images import filesystem

pytestmark = pytest.mark.needs_debian("mke2fs")
ODD = 'a "quoted" <2> file; dump /etc/shadow'


def write(where: Path) -> Path:
    """A root with what is hard to get right: owners, modes, names, links, an empty file."""
    tree, spool = Tree(), Spool(where / "spool")
    put_file(tree, spool, "bin/su", b"su" * 5000, 0o4755)
    put_file(tree, spool, "home/agent/.secret", b"x", 0o000, 1000, 1000)
    put_file(tree, spool, ODD, b"odd", 0o640, 7, 2**31)
    tree.put("closed", directory(0o1000, 5, 6))
    put_file(tree, spool, "closed/inside", b"in")
    tree.put("empty", file(0))
    su = tree.find("bin/su")
    assert su is not None
    tree.put("bin/again", su)
    tree.put("etc/shadow", link("/nowhere/shadow"))
    ext4.lay_out(tree, where / "root")
    ext4.write(tree, where / "root", where / "root.ext4")
    return where / "root.ext4"


def test_owners_modes_links_and_content_are_the_trees(tmp_path: Path) -> None:
    """And e2fsck has nothing to repair."""
    image = write(tmp_path)
    filesystem.check(image)
    su, odd = filesystem.look(image, "/bin/su"), filesystem.look(image, f"/{ODD}")
    assert su is not None and (su.mode, su.uid, su.gid, su.size, su.links) == (0o4755, 0, 0, 10_000, 2)
    assert odd is not None and (odd.mode, odd.uid, odd.gid) == (0o640, 7, 2**31)
    secret, closed = filesystem.look(image, "/home/agent/.secret"), filesystem.look(image, "/closed")
    assert secret is not None and (secret.mode, secret.uid, secret.gid) == (0, 1000, 1000)
    assert closed is not None and (closed.mode, closed.uid, closed.gid) == (0o1000, 5, 6)
    assert filesystem.content(image, "/bin/again") == b"su" * 5000
    assert filesystem.target(image, "/etc/shadow") == "/nowhere/shadow"
    assert filesystem.names(image, "/") >= {"bin", "home", "etc", "empty", "closed"}


def test_no_set_uid_program_stands_on_the_host(tmp_path: Path) -> None:
    """While it is built, the root is files of ours: others must not find a set-uid program in it."""
    tree, spool = Tree(), Spool(tmp_path / "spool")
    put_file(tree, spool, "su", b"su", 0o6755)
    ext4.lay_out(tree, tmp_path / "root")
    assert stat.S_IMODE((tmp_path / "root/su").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "root").stat().st_mode) == 0o700


def test_the_same_content_is_the_same_file(tmp_path: Path) -> None:
    """Bit for bit: two machines can compare what they run."""
    first, second = tmp_path / "1", tmp_path / "2"
    hashes = []
    for where in (first, second):
        where.mkdir()
        hashes.append(hashlib.sha256(write(where).read_bytes()).hexdigest())
    assert hashes[0] == hashes[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="as a normal user the other tests show it")
def test_a_normal_user_builds_the_same_as_root(tmp_path: Path) -> None:
    """No privilege takes part: neither chown nor mknod nor a mount."""
    place = Path(tempfile.mkdtemp())  # pytest's own are closed to others
    try:
        os.chown(place, 65534, 65534)
        process = multiprocessing.get_context("fork").Process(target=_as_nobody, args=(place,))
        process.start()
        process.join(60)
        assert process.exitcode == 0
        assert (place / "root.ext4").read_bytes() == write(tmp_path).read_bytes()
    finally:
        shutil.rmtree(place)


def _as_nobody(place: Path) -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    write(place)


def test_a_name_that_debugfs_would_take_for_a_command_does_not_reach_it(tmp_path: Path) -> None:
    """The last look before a script is made of names."""
    tree = Tree()
    tree.root.children["a\nwrite /etc/shadow b"] = file(0)
    with pytest.raises(ImageError, match="cannot hold the path"):
        ext4.lay_out(tree, tmp_path / "root")


def test_a_missing_tool_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of a traceback about a file that does not exist."""
    monkeypatch.setattr(programs, "_SEARCH", str(tmp_path))
    with pytest.raises(ImageError, match=r"mkfs\.ext4 is not installed") as raised:
        write(tmp_path)
    assert raised.value.hint == "apt-get install e2fsprogs"
