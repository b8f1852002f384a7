"""Tar archives that mean well, and those that do not."""

import io
import tarfile
from pathlib import Path

import pytest

from coatcheck.images.archive import MAX_HEADER, BadArchive, apply
from coatcheck.images.problem import ImageError
from coatcheck.images.spool import Spool
from coatcheck.images.tree import Tree
from tests.images.tars import Entry, entry, tar


def applied(tmp_path: Path, *layers: bytes) -> Tree:
    tree, spool = Tree(), Spool(tmp_path / "spool", max_bytes=1024 * 1024, max_entries=100)
    for number, layer in enumerate(layers, start=1):
        apply(tree, io.BytesIO(layer), spool, layer=number, whiteouts=True)
    return tree


def paths(tree: Tree) -> set[str]:
    return {path for path, node in tree.walk() if not node.is_directory}


def test_files_links_and_owners_arrive(tmp_path: Path) -> None:
    """Hard links are one file with two names."""
    tree = applied(
        tmp_path,
        tar(
            ("usr/bin/a", b"program"),
            entry("usr/bin/b", tarfile.LNKTYPE, "usr/bin/a"),
            entry("usr/bin/c", tarfile.SYMTYPE, "/usr/bin/a"),
            entry("home/me", tarfile.DIRTYPE, uid=1000, gid=1000, mode=0o2770),
        ),
    )
    assert tree.find("usr/bin/b") is tree.find("usr/bin/a")
    file, home = tree.find("usr/bin/a"), tree.find("home/me")
    assert file is not None and file.content is not None and file.content.read_bytes() == b"program"
    assert home is not None and (home.uid, home.gid, home.mode & 0o7777) == (1000, 1000, 0o2770)


HOSTILE: dict[str, tuple[Entry, ...]] = {
    "an absolute path": (("/etc/passwd", b"x"),),
    "a path that climbs": (("../outside", b"x"),),
    "a path that climbs later": (("a/../../outside", b"x"),),
    "a device": (entry("disk", tarfile.BLKTYPE, devmajor=8),),
    "a character device": (entry("mem", tarfile.CHRTYPE, devmajor=1, devminor=1),),
    "a pipe": (entry("pipe", tarfile.FIFOTYPE),),
    "a link that leads out": (entry("a/out", tarfile.SYMTYPE, "../../../etc/shadow"),),
    "a hard link that leads out": (entry("out", tarfile.LNKTYPE, "../../etc/shadow"),),
    "an absolute hard link": (entry("out", tarfile.LNKTYPE, "/etc/shadow"),),
    "a hard link to nothing": (entry("out", tarfile.LNKTYPE, "etc/shadow"),),
    "a hard link to a directory": (entry("d"), entry("out", tarfile.LNKTYPE, "d")),
    "a name with a line's end": (("a\nrm -rf b", b"x"),),
    "a whiteout of what is above": (("d/.wh...", b""),),
    "an owner beyond all": (entry("d", uid=2**40),),
    "a path through a file": (("a", b"x"), ("a/b", b"x")),
    "a path through a circle": (entry("a", tarfile.SYMTYPE, "a"), ("a/b", b"x")),
}


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=HOSTILE)
def test_what_reaches_beyond_the_root_is_refused(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    """By name, with the whole archive: nothing is repaired."""
    with pytest.raises(ImageError) as raised:
        applied(tmp_path, tar(*entries))
    assert raised.value.hint
    assert sorted(tmp_path.iterdir()) == [tmp_path / "spool"]


def test_a_link_cannot_be_used_to_write_outside(tmp_path: Path) -> None:
    """The classic: a link to a directory of the host, and a file through it. It lands inside."""
    outside = tmp_path / "outside"
    outside.mkdir()
    tree = applied(tmp_path, tar(entry("a", tarfile.SYMTYPE, str(outside)), ("a/file", b"x")))
    assert not list(outside.iterdir())
    assert f"{outside}/file" in paths(tree)


def test_too_many_bytes_or_entries_end_it_early(tmp_path: Path) -> None:
    """A bomb meets its bound before the disk does."""
    with pytest.raises(ImageError, match="GiB of files"):
        applied(tmp_path, tar(*((f"f{n}", bytes(100_000)) for n in range(11))))
    assert sum(path.stat().st_size for path in (tmp_path / "spool").iterdir()) <= 1024 * 1024
    (tmp_path / "other").mkdir()
    with pytest.raises(ImageError, match="more than 100 files"):
        applied(tmp_path / "other", tar(*(entry(f"d{n}") for n in range(101))))


def test_a_header_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    """tarfile would take an extended header's claimed length into memory."""
    huge = entry("x", tarfile.XHDTYPE, size=2**30).tobuf(tarfile.USTAR_FORMAT)
    with pytest.raises(BadArchive, match=f"at most {MAX_HEADER} are read"):
        applied(tmp_path, huge + bytes(4096))


@pytest.mark.parametrize("size", [2**40, -1])
@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_SPARSE, tarfile.REGTYPE, tarfile.DIRTYPE, b"V"])
def test_an_entry_that_claims_a_terabyte_is_refused_at_once(tmp_path: Path, kind: bytes, size: int) -> None:
    """Skipping it would take hours, even where the archive has ended."""
    header = entry("big", kind, size=size).tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(BadArchive):
        applied(tmp_path, header + bytes(1024))


def test_an_extended_header_cannot_raise_the_claim(tmp_path: Path) -> None:
    """Its `size` counts instead of the header's."""
    claimed = entry("big", tarfile.REGTYPE, pax_headers={"size": str(2**60)})
    with pytest.raises(BadArchive, match="an entry of"):
        applied(tmp_path, tar(claimed))


@pytest.mark.parametrize("keep", [10, 600, 1500])
def test_a_torn_archive_is_no_archive(tmp_path: Path, keep: int) -> None:
    """A download that broke off must not become a smaller image."""
    with pytest.raises(BadArchive):
        applied(tmp_path, tar(("a", bytes(2000)), ("b", b"x"))[:keep])


def test_whiteouts_take_away_what_lies_below(tmp_path: Path) -> None:
    """A file, a directory, everything below an opaque one; not what the same layer brings."""
    first = tar(("a/1", b""), ("a/2", b""), ("b/c/3", b""), ("d/4", b""), ("d/e/5", b""), ("keep", b""))
    second = tar(
        ("a/.wh.1", b""), (".wh.b", b""), ("d/new", b""), ("d/.wh..wh..opq", b""), (".wh.nothing", b"")
    )
    assert paths(applied(tmp_path, first, second)) == {"/a/2", "/d/new", "/keep"}


def test_a_directory_can_become_a_file_and_a_file_a_directory(tmp_path: Path) -> None:
    """In a later layer, through a whiteout or over it."""
    first = tar(("a/1", b""), ("b", b"file"))
    second = tar((".wh.b", b""), ("a", b"file"))
    third = tar(("b/2", b""))
    assert paths(applied(tmp_path, first, second, third)) == {"/a", "/b/2"}
