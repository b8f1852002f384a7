"""Directories: every file below one, and every name; and which ones the processes of a sandbox can write."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coatcheck.inspection.region import Region, Scan
from coatcheck.inspection.residue import PAGE

_OWN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
"""Whatever they hold was put there while the sandbox lived, also where they are read-only by now."""
_DISKS: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "overlay", "bcachefs"})
_WITHOUT_FILES: Final = frozenset({"proc", "sysfs", "devpts", "devtmpfs", "mqueue", "cgroup", "cgroup2"})
_DESCRIPTOR = re.compile(r"/proc/[0-9]+/fd/[0-9]+")
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A file system, or a part of one, as one process sees it."""

    identity: tuple[str, str]
    """Device and the part's root within it: the same for each process that sees it, wherever."""
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


def mounts(pid: int | str) -> list[Mount]:
    """All mounts that the process sees."""
    found = []
    for line in Path(f"/proc/{pid}/mountinfo").read_text(errors="surrogateescape").splitlines():
        head, _, tail = line.partition(" - ")
        fields, kind = head.split(" "), tail.split(" ")[0]
        root, at = (_ESCAPE.sub(lambda octal: chr(int(octal[1], 8)), text) for text in fields[3:5])
        writable = "rw" in fields[5].split(",")
        found.append(Mount((fields[2], root), f"/proc/{pid}/root{at}", kind, writable))
    return found


class Mounts:
    """The file systems of a sandbox's processes: each is searched once, however many processes see it.

    Those of the host itself are none of the sandbox's. One that it could write to is a hole in its walls, and
    is told as not searched.
    """

    def __init__(self) -> None:
        self.known: set[tuple[int, int]] = set()
        """Directories whose trees have been searched: device and inode."""
        self._hosts = {mount.identity for mount in mounts("self")}
        self._seen: set[tuple[str, str]] = set()

    def search(self, scan: Scan, region: Region, pid: int) -> None:
        """What the process can write, or could."""
        try:
            if os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
                return  # it lives on the host's own files
            seen = mounts(pid)
        except OSError as error:
            region.miss(f"a process's mounts cannot be listed ({error.strerror})")
            return
        for mount in seen:
            if mount.identity in self._seen or not mount.may_hold:
                continue
            self._seen.add(mount.identity)
            if mount.identity in self._hosts:
                if mount.writable:
                    region.miss(f"a file system of the host can be written ({mount.kind})")
            elif not mount.safe:
                region.miss(f"a mounted file system of a kind that is not looked into ({mount.kind})")
            else:
                search_tree(scan, region, mount.path, self.known)


def search_tree(scan: Scan, region: Region, top: str, known: set[tuple[int, int]]) -> None:
    """Every file below `top` on the same file system, every name, link and extended attribute; unless `top`
    is among the `known`, to which it is added.

    Nothing that the sandbox named is told, since a name could be the secret: a finding has the inode.
    """
    try:
        status = os.stat(top)
        if (status.st_dev, status.st_ino) in known:
            return
        known.add((status.st_dev, status.st_ino))
        if not stat.S_ISDIR(status.st_mode):
            search_path(scan, region, top)
            return
    except OSError as error:
        region.miss(f"a directory cannot be read ({error.strerror})")
        return

    def missed(error: OSError) -> None:
        region.miss(f"a directory cannot be read ({error.strerror})")

    for _, directories, files, fd in os.fwalk(top, onerror=missed, follow_symlinks=False):
        names = [os.fsencode(name) for name in (*directories, *files)]
        directories[:] = [name for name in directories if _device(fd, name) == status.st_dev]
        for name in files:
            names += _search_entry(scan, region, fd, name)
        try:
            names += attributes(fd)
        except OSError as error:
            missed(error)
        if names:
            scan.bytes(region, b"\0".join(names), item=f"names in directory inode {os.fstat(fd).st_ino}")


def search_path(scan: Scan, region: Region, path: str, *, page: int = PAGE) -> None:
    """One file of ours: a guest's memory, a disk. Not a link, but for a descriptor that a process has open: a
    guest's memory may stand in no directory."""
    no_link = 0 if _DESCRIPTOR.fullmatch(path) else os.O_NOFOLLOW
    try:
        fd = os.open(path, os.O_RDONLY | no_link | os.O_NONBLOCK | os.O_CLOEXEC)
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
        yield from attributes(fd)
    except OSError as error:
        region.miss(f"a file cannot be read ({error.strerror})")
    finally:
        os.close(fd)


def attributes(fd: int) -> Iterator[bytes]:
    """The extended attributes of a file or directory, with their names."""
    try:
        names = os.listxattr(fd)
    except OSError:
        return  # a file system without them
    for name in names:
        yield os.fsencode(name) + b"=" + os.getxattr(fd, name)


def _device(directory: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_dev
    except OSError:
        return -1
