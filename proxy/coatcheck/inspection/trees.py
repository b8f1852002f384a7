"""Directories: every file below one, and every name; and which ones the processes of a sandbox can write."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coatcheck.decision.residue import PAGE
from coatcheck.inspection.region import Region, Scan

_OWN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
"""Whatever they hold was put there while the sandbox lived, also where they are read-only by now."""
_DISKS: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "overlay", "bcachefs"})
_WITHOUT_FILES: Final = frozenset({"proc", "sysfs", "devpts", "devtmpfs", "mqueue", "cgroup", "cgroup2"})
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A file system, or a part of one, as one process sees it."""

    identity: tuple[str, str]
    """Device and the part's root within it: the same for whoever sees it, wherever."""
    path: str
    kind: str
    writable: bool

    @property
    def may_hold(self) -> bool:
        """Whether the sandbox could have put something there."""
        return self.kind in _OWN_MEMORY or (self.writable and self.kind not in _WITHOUT_FILES)

    @property
    def safe(self) -> bool:
        """Whether looking asks nobody but the kernel: a paused process's FUSE file system never answers."""
        return self.kind in _OWN_MEMORY or self.kind in _DISKS


def mounts(pid: int) -> list[Mount]:
    """All mounts that the process sees."""
    found = []
    for line in Path(f"/proc/{pid}/mountinfo").read_text(errors="surrogateescape").splitlines():
        head, _, tail = line.partition(" - ")
        fields, kind = head.split(" "), tail.split(" ")[0]
        root, at = (_ESCAPE.sub(lambda octal: chr(int(octal[1], 8)), text) for text in fields[3:5])
        writable = "rw" in fields[5].split(",")
        found.append(Mount((fields[2], root), f"/proc/{pid}/root{at}", kind, writable))
    return found


def search_mounts(scan: Scan, region: Region, pid: int, known: set[tuple[str, str]]) -> None:
    """What the process can write, or could."""
    try:
        seen = mounts(pid)
    except OSError as error:
        region.miss(f"a process's mounts cannot be listed ({error.strerror})")
        return
    for mount in seen:
        if mount.identity in known or not mount.may_hold:
            continue
        known.add(mount.identity)
        if mount.safe:
            search_tree(scan, region, mount.path)
        else:
            region.miss(f"a mounted file system of a kind that is not looked into ({mount.kind})")


def search_tree(scan: Scan, region: Region, top: str) -> None:
    """Every file below `top` on the same file system, every name, link and extended attribute.

    Nothing that the sandbox named is told, since a name could be the secret: a finding has the inode.
    """
    try:
        device = os.stat(top).st_dev
        if not os.path.isdir(top):
            search_path(scan, region, top)
            return
    except OSError as error:
        region.miss(f"a directory cannot be read ({error.strerror})")
        return

    def missed(error: OSError) -> None:
        region.miss(f"a directory cannot be read ({error.strerror})")

    for _, directories, files, fd in os.fwalk(top, onerror=missed, follow_symlinks=False):
        names = [os.fsencode(name) for name in (*directories, *files)]
        directories[:] = [name for name in directories if _device(fd, name) == device]
        for name in files:
            names += _search_entry(scan, region, fd, name)
        if names:
            scan.bytes(region, b"\0".join(names), item=f"names in directory inode {os.fstat(fd).st_ino}")


def search_path(scan: Scan, region: Region, path: str, *, page: int = PAGE) -> None:
    """One file of ours: a guest's memory, a disk. Not a link."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        region.miss(f"it cannot be opened ({error.strerror})")
        return
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISREG(mode) or stat.S_ISBLK(mode):
            scan.file(region, fd, page=page)
            region.items += 1
        else:
            region.miss("it is neither a file nor a disk")
    finally:
        os.close(fd)


def _search_entry(scan: Scan, region: Region, directory: int, name: str) -> Iterator[bytes]:
    """Search a file's content; what else it holds is given back, to be searched with the names."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            yield os.fsencode(os.readlink(name, dir_fd=directory))
            return
        if not stat.S_ISREG(status.st_mode):
            return
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        region.miss(f"a file cannot be read ({error.strerror})")
        return
    try:
        region.items += 1
        scan.file(region, fd, item=f"inode {status.st_ino}")
        try:
            attributes = os.listxattr(fd)
        except OSError:
            return  # a file system without them
        for attribute in attributes:
            yield os.fsencode(attribute) + b"=" + os.getxattr(fd, attribute)
    except OSError as error:
        region.miss(f"a file cannot be read ({error.strerror})")
    finally:
        os.close(fd)


def _device(directory: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_dev
    except OSError:
        return -1
