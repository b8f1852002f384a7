"""The content of a root, as a tree in memory: names and attributes here, bytes of files in a spool directory.

Archives are applied to this tree and never unpacked to the disk as they are: no link in it is ever followed
by the host's kernel, and who owns a file is a value here and needs no privilege.
"""

import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from coatcheck.images.problem import ImageError

MAX_NAME = 255
"""Bytes of one name: what ext4 can hold."""
MAX_PATH = 2048
"""Bytes of a path. PATH_MAX is 4096; debugfs reads lines of 8192, in which a quote counts twice."""
MAX_LINK = 4095
"""Bytes of a symbolic link's target (PATH_MAX without its NUL)."""
MAX_HOPS = 40
"""Symbolic links in one path, as in Linux (path_resolution(7))."""


_UNTRUSTED = "this archive is not to be trusted"


class BadName(ImageError):
    """A path, a link or a kind of file that no image may hold."""


@dataclass(slots=True, eq=False)
class Node:
    """A file, directory or symbolic link. Hard links are one node with several names."""

    mode: int
    """With the type, as in st_mode."""
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    """Unix seconds."""
    content: Path | None = None
    """A file of the spool; None: empty. Never written to again."""
    size: int = 0
    target: str = ""
    """Of a symbolic link."""
    layer: int = 0
    """Which layer put it there: an opaque directory hides only what is below its own."""
    children: dict[str, "Node"] = field(default_factory=dict)

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)


def directory(mode: int = 0o755, uid: int = 0, gid: int = 0, mtime: int = 0) -> Node:
    return Node(stat.S_IFDIR | mode, uid, gid, mtime)


def link(target: str, mtime: int = 0) -> Node:
    return Node(stat.S_IFLNK | 0o777, mtime=mtime, target=target)


def file(size: int, mtime: int = 0) -> Node:
    """A plain file of root's whose bytes are in place already."""
    return Node(stat.S_IFREG | 0o644, mtime=mtime, size=size)


def parts(path: str) -> list[str]:
    """The names in a relative or absolute path, without `.`. BadName for `..` and for what no image may hold.

    Control characters are refused: names go to debugfs a line each, and to terminals.
    """
    if len(path.encode(errors="surrogateescape")) > MAX_PATH:
        raise BadName(f"a path is longer than {MAX_PATH} bytes: {path[:80]}…", "shorten it")
    names = [name for name in path.split("/") if name not in ("", ".")]
    for name in names:
        if name == "..":
            raise BadName(f"a path climbs out of its directory: {path!r}", _UNTRUSTED)
        if len(name.encode(errors="surrogateescape")) > MAX_NAME:
            raise BadName(f"a name is longer than {MAX_NAME} bytes: {name[:80]}…", "shorten it")
        if any(ord(letter) < 32 or ord(letter) == 127 for letter in name):
            raise BadName(f"a name holds control characters: {path!r}", "rename it, or leave it out")
    return names


class Tree:
    """A root directory that is being put together."""

    def __init__(self) -> None:
        self.root = directory()

    def find(self, path: str) -> Node | None:
        """What is at `path`, itself: a link at its end is not followed, links on the way are, inside."""
        names = parts(path)
        if not names:
            return self.root
        parent = self._directory(names[:-1], make=False)
        return parent.children.get(names[-1]) if parent else None

    def parent_of(self, path: str) -> tuple[Node, str]:
        """The directory that holds the last name of `path`, made if it is missing, and that name."""
        names = parts(path)
        if not names:
            raise BadName(f"{path!r} names nothing", _UNTRUSTED)
        parent = self._directory(names[:-1], make=True)
        assert parent is not None  # noqa: S101 - make=True
        return parent, names[-1]

    def put(self, path: str, node: Node, *, keep_directory_links: bool = False) -> None:
        """Place `node` at `path`. A directory over a directory keeps what is in it.

        `keep_directory_links`: as dpkg does, a directory over a link to one goes to where it points.
        """
        if not parts(path):
            if node.is_directory:
                self._attributes(self.root, node)
            return
        parent, name = self.parent_of(path)
        old = parent.children.get(name)
        if node.is_directory and old is not None:
            if old.is_directory:
                self._attributes(old, node)
                return
            if keep_directory_links and old.is_link and self._directory(parts(path), make=False):
                return
        parent.children[name] = node

    def remove(self, path: str) -> None:
        parent, name = self.parent_of(path)
        parent.children.pop(name, None)

    def walk(self) -> Iterator[tuple[str, Node]]:
        """Every (path, node), sorted, a directory before what is in it. The root itself is the path ``."""
        waiting = [("", self.root)]
        while waiting:
            path, node = waiting.pop()
            yield path, node
            below = sorted(node.children.items(), reverse=True)
            waiting += [(f"{path}/{name}", child) for name, child in below]

    def resolve(self, path: str) -> Node | None:
        """What `path` leads to, links followed within this root; None when it leads nowhere."""
        return self._lead(parts(path), make=False)

    def _directory(self, names: list[str], *, make: bool) -> Node | None:
        found = self._lead(names, make=make)
        if found is None or found.is_directory:
            return found
        if make:
            raise BadName(
                f"{'/'.join(names)} is to be a directory and is a file",
                "the layers of this archive contradict each other",
            )
        return None

    def _lead(self, names: list[str], *, make: bool) -> Node | None:
        """As path_resolution(7) in a chroot. With `make` directories come to be where nothing is."""
        trail = [self.root]
        waiting, hops = names[::-1], 0
        while waiting:
            name = waiting.pop()
            if name == "..":
                if len(trail) > 1:
                    trail.pop()  # `..` of a root is the root
                continue
            node = trail[-1].children.get(name)
            if node is None and make:
                # A link's target is checked here, where it would become a name.
                node = trail[-1].children[parts(name)[0]] = directory()
            if node is None:
                return None
            if node.is_link:
                hops += 1
                if hops > MAX_HOPS:
                    if make:
                        raise BadName(f"{'/'.join(names)} is a circle of links", _UNTRUSTED)
                    return None
                if node.target.startswith("/"):
                    del trail[1:]
                waiting += [part for part in node.target.split("/")[::-1] if part not in ("", ".")]
                continue
            if waiting and not node.is_directory:
                return node if make else None
            trail.append(node)
        return trail[-1]

    @staticmethod
    def _attributes(old: Node, new: Node) -> None:
        old.mode, old.uid, old.gid, old.mtime, old.layer = new.mode, new.uid, new.gid, new.mtime, new.layer
