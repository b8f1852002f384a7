"""A root that stands in a directory of this machine, read into a tree."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from coatcheck.images.problem import ImageError
from coatcheck.images.spool import Spool
from coatcheck.images.tree import Node, Tree, parts

LEFT_OUT = frozenset({"dev", "proc", "sys", "run"})
"""Directories whose content is the kernel's or a running system's: the guest has its own."""


def read_directory(path: Path, tree: Tree, spool: Spool, tell: Callable[[str], None]) -> None:
    """Copy the root at `path` into `tree`. Sockets and pipes are left out and told; devices are refused.

    What belongs to the user who runs this belongs to root in the image, as in what that user unpacked.
    """
    try:
        top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ImageError(
            f"{path} cannot be read as a directory: {error.strerror}", "give the root's own directory"
        ) from error
    _Reader(tree, spool, tell).read(top)


MAX_DEPTH = 200
"""Levels: each is a descriptor and a call of ours. A root has some 20."""


class _Reader:
    def __init__(self, tree: Tree, spool: Spool, tell: Callable[[str], None]) -> None:
        self._tree = tree
        self._spool = spool
        self._tell = tell
        self._ours = os.geteuid()
        self._seen: dict[tuple[int, int], Node] = {}

    def read(self, top: int) -> None:
        """Closes `top`."""
        try:
            self._attributes(self._tree.root, os.fstat(top))
            self._below(top, "")
        except OSError as error:
            raise ImageError(
                f"the directory cannot be read: {error.filename or ''} {error.strerror}".replace("  ", " "),
                "run this as a user who may read all of it",
            ) from error
        finally:
            os.close(top)

    def _below(self, directory: int, path: str) -> None:
        if path.count("/") > MAX_DEPTH:
            raise ImageError(f"{path[:80]}… is more than {MAX_DEPTH} levels deep", "leave it out")
        for name in sorted(os.listdir(directory)):
            inside = f"{path}/{name}" if path else name
            parts(inside)
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISSOCK(status.st_mode) or stat.S_ISFIFO(status.st_mode):
                self._tell(f"left out {inside}: a socket or a pipe")
                continue
            self._spool.count_entry()
            if (known := self._seen.get((status.st_dev, status.st_ino))) is not None:
                self._tree.put(inside, known)
                continue
            node = self._node(directory, name, inside, status)
            self._tree.put(inside, node)
            if status.st_nlink > 1 and not node.is_directory:
                self._seen[status.st_dev, status.st_ino] = node
            if node.is_directory and inside not in LEFT_OUT:
                child = os.open(
                    name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory
                )
                try:
                    self._below(child, inside)
                finally:
                    os.close(child)

    def _node(self, directory: int, name: str, path: str, status: os.stat_result) -> Node:
        node = Node(status.st_mode)
        self._attributes(node, status)
        if node.is_link:
            node.target = os.readlink(name, dir_fd=directory)
        elif node.is_file:
            # NONBLOCK and NOFOLLOW: whatever takes its place meanwhile neither hangs us nor leads elsewhere.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, dir_fd=directory), "rb") as file:
                node.content, node.size = self._spool.take(file)
        elif not node.is_directory:
            raise ImageError(f"{path} is a device", "leave it out: the guest has its own /dev")
        return node

    def _attributes(self, node: Node, status: os.stat_result) -> None:
        node.mode = status.st_mode
        node.uid = 0 if status.st_uid == self._ours else status.st_uid
        node.gid = 0 if status.st_gid == os.getegid() else status.st_gid
        node.mtime = max(0, min(int(status.st_mtime), 2**32 - 1))
