"""Applying a tar archive to a tree: a Debian package's files, or a layer of a container image.

The archive is hostile input. What could reach beyond the root is refused by name, not repaired: absolute
paths, `..`, links out of the root, devices. So is what could fill memory or disk: counts, sizes and the
archive's own extended headers are bounded.
"""

import stat
import tarfile
from collections.abc import Callable
from typing import IO, Self

from coatcheck.images.problem import ImageError
from coatcheck.images.spool import MAX_BYTES, Spool
from coatcheck.images.tree import MAX_LINK, Node, Tree, parts

MAX_HEADER = 1024 * 1024
"""Bytes of one extended header, which tarfile reads into memory. Long names and attributes take some KiB."""
MAX_ID = 2**32 - 2
"""Of users and groups; -1 means "leave it" to chown(2)."""

_EXTENDED = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_HINT = "this archive is not to be trusted, or was not made for a root directory"


class BadArchive(ImageError):
    """An archive cannot be read, or holds what no image may hold."""

    def __init__(self, message: str, hint: str = _HINT) -> None:
        super().__init__(message, hint)


class BoundedInfo(tarfile.TarInfo):
    """Refuses an extended header before tarfile reads it."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        info = super().frombuf(buf, encoding, errors)
        if info.type in _EXTENDED and info.size > MAX_HEADER:
            raise BadArchive(f"an extended header of {info.size} bytes, at most {MAX_HEADER} are read")
        _check_size(info)
        return info


def _check_size(info: tarfile.TarInfo) -> None:
    """tarfile skips what a header claims in steps of 10 KiB, beyond the archive's end, too: for hours."""
    if not 0 <= info.size <= MAX_BYTES:
        raise BadArchive(f"an entry of {info.size} bytes")


def apply(
    tree: Tree,
    stream: IO[bytes],
    spool: Spool,
    *,
    layer: int = 0,
    whiteouts: bool = False,
    keep_directory_links: bool = False,
    wanted: Callable[[str], bool] = lambda _path: True,
) -> None:
    """Put what the tar archive `stream` holds into `tree`, its bytes into `spool`.

    `whiteouts`: names beginning with .wh. take away what lower layers put there (OCI image-spec, layer.md).
    `wanted` is asked with each path, without a leading slash; what it denies is left out, its bytes unread.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=BoundedInfo) as archive:
            for member in archive:
                _member(tree, archive, member, spool, layer, whiteouts, keep_directory_links, wanted)
                # tarfile remembers every member for the sake of later lookups, which a stream has not.
                archive.members = []  # type: ignore[attr-defined]
    except (tarfile.TarError, EOFError, UnicodeError, ValueError, OverflowError) as error:
        raise BadArchive(f"it is not a complete tar archive: {error}", "make or copy it again") from error


def _member(
    tree: Tree,
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    spool: Spool,
    layer: int,
    whiteouts: bool,
    keep_directory_links: bool,
    wanted: Callable[[str], bool],
) -> None:
    spool.count_entry()
    _check_size(member)  # again: an extended header can have changed it
    if member.name.startswith("/"):
        raise BadArchive(f"an absolute path: {member.name!r}")
    names = parts(member.name)
    path = "/".join(names)
    if whiteouts and names and names[-1].startswith(_WHITEOUT):
        _whiteout(tree, names, layer)
        return
    if not wanted(path):
        return
    if member.islnk():
        _hard_link(tree, path, member)
        return
    node = Node(
        mode=member.mode & 0o7777,
        uid=_id(member.uid, path),
        gid=_id(member.gid, path),
        mtime=max(0, min(int(member.mtime), 2**32 - 1)),
        layer=layer,
    )
    if member.isdir():
        node.mode |= stat.S_IFDIR
    elif member.issym():
        node.mode = stat.S_IFLNK | 0o777
        node.target = _target(names, member.linkname)
    elif member.isreg():
        node.mode |= stat.S_IFREG
        content = archive.extractfile(member)
        if content is None:
            raise BadArchive(f"{path} has no content")
        with content:
            node.content, node.size = spool.take(content)
        if node.size != member.size:
            raise BadArchive(f"it ends in the middle of {path}", "make or copy it again")
    else:
        raise BadArchive(f"{path} is a device, a pipe or of an unknown kind (type {member.type!r})")
    tree.put(path, node, keep_directory_links=keep_directory_links)


def _id(number: int, path: str) -> int:
    if not 0 <= number <= MAX_ID:
        raise BadArchive(f"{path} belongs to number {number}, which is not a user or group")
    return number


def _target(names: list[str], target: str) -> str:
    """A symbolic link's target, if it stays inside: an absolute one does, the guest has no other root."""
    if not target or len(target.encode(errors="surrogateescape")) > MAX_LINK or "\0" in target:
        raise BadArchive(f"the link {'/'.join(names)} points to nothing that a link may point to")
    if not target.startswith("/"):
        depth = len(names) - 1
        for part in target.split("/"):
            depth += -1 if part == ".." else part not in ("", ".")
            if depth < 0:
                raise BadArchive(f"the link {'/'.join(names)} leads out of the root: {target!r}")
    return target


def _hard_link(tree: Tree, path: str, member: tarfile.TarInfo) -> None:
    if member.linkname.startswith("/"):
        raise BadArchive(f"the hard link {path} leads out of the root: {member.linkname!r}")
    node = tree.find(member.linkname)
    if node is None or node.is_directory:
        raise BadArchive(f"the hard link {path} leads to {member.linkname!r}, which is not a file here")
    tree.put(path, node)


def _whiteout(tree: Tree, names: list[str], layer: int) -> None:
    name = names[-1]
    if name == _OPAQUE:
        directory = tree.find("/".join(names[:-1]))
        if directory is not None and directory.is_directory:
            _hide(directory, layer)
        return
    hidden = name.removeprefix(_WHITEOUT)
    if hidden in ("", ".", ".."):
        raise BadArchive(f"a whiteout of nothing: {'/'.join(names)!r}")
    if hidden.startswith(_WHITEOUT):
        return  # aufs's own notes
    parent = tree.resolve("/".join(names[:-1]))
    child = parent.children.get(hidden) if parent is not None and parent.is_directory else None
    if parent is not None and child is not None:
        # What this very layer put there stays: a whiteout is about what lies below it.
        if child.is_directory:
            _hide(child, layer)
        if child.layer < layer and not child.children:
            del parent.children[hidden]


def _hide(directory: Node, layer: int) -> None:
    """Take out of `directory` what lower layers put there."""
    waiting = [directory]
    below: list[Node] = []
    while waiting:
        node = waiting.pop()
        below.append(node)
        waiting += [child for child in node.children.values() if child.is_directory]
    for node in reversed(below):
        for name, child in list(node.children.items()):
            if child.layer < layer and not (child.is_directory and child.children):
                del node.children[name]
