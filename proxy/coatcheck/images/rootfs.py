"""A root, whatever it is made from: what each needs (mount points, two users), and the filesystem of it."""

import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from coatcheck.images import ext4, finishing
from coatcheck.images.cache import remove
from coatcheck.images.debian import put_file, read
from coatcheck.images.problem import ImageError
from coatcheck.images.spool import Spool
from coatcheck.images.tree import Tree, directory, link

NAME = "root.ext4"
IDENTITIES = (("agent", 1000), ("tool", 1001))
"""Users that the guest's agent runs commands as: the harness, and what it does not trust."""
RESOLVER = "127.0.0.53"
"""The guest's agent answers there, with synthetic addresses."""
_KERNELS = ("dev", "proc", "sys", "run")
_DIRECTORIES = (("tmp", 0o1777), ("var/tmp", 0o1777), ("root", 0o700), ("home", 0o755), ("etc", 0o755))
_TTY = ("tty", 5)
"""The group of terminals, by the number that init mounts devpts with."""


def make(
    directory: Path,
    read: Callable[[Tree, Spool], None],
    tell: Callable[[str], None],
    *,
    finish: bool = False,
) -> None:
    """`NAME` in `directory`, of what `read` puts into the tree. `finish`: run programs of it here."""
    tree, work = Tree(), directory / "work"
    work.mkdir(mode=0o700)
    spool = Spool(work / "spool")
    read(tree, spool)
    complete(tree, spool)
    ext4.lay_out(tree, work / "root")
    if finish:
        finishing.finish(tree, work / "root", tell)
    tell("writing the filesystem")
    ext4.write(tree, work / "root", directory / NAME)
    remove(work)


def complete(tree: Tree, spool: Spool) -> None:
    """Make `tree` a root that init can boot. ImageError when there is nothing in it to run."""
    if not any(_runs(tree, path) for path in ("bin", "usr/bin")):
        raise ImageError(
            "it has no programs: neither /bin nor /usr/bin is a directory with something in it",
            "give the root itself, the directory that holds usr, etc and so on",
        )
    for name in _KERNELS:
        _empty(tree, name)
    for path, mode in _DIRECTORIES:
        if (found := tree.resolve(path)) is None:
            tree.put(path, directory(mode))
        elif found.is_directory and mode == 0o1777:
            found.mode = stat.S_IFDIR | mode
    _users(tree, spool)
    put_file(tree, spool, "etc/resolv.conf", f"nameserver {RESOLVER}\n".encode())
    put_file(tree, spool, "etc/hosts", b"127.0.0.1 localhost\n::1 localhost\n")
    put_file(tree, spool, "etc/hostname", b"sandbox\n")
    # Empty: each sandbox is another machine, and its agent says which.
    put_file(tree, spool, "etc/machine-id", b"", 0o644)
    tree.put("etc/mtab", link("/proc/self/mounts"))


def _runs(tree: Tree, path: str) -> bool:
    found = tree.resolve(path)
    return found is not None and found.is_directory and bool(found.children)


def _empty(tree: Tree, name: str) -> None:
    """A directory to mount on: a link there would put the mount elsewhere."""
    tree.remove(name)
    tree.put(name, directory())


def _users(tree: Tree, spool: Spool) -> None:
    shell = "/bin/bash" if tree.resolve("bin/bash") is not None else "/bin/sh"
    passwd = _lines(tree, "etc/passwd") or [f"root:x:0:0:root:/root:{shell}"]
    group = _lines(tree, "etc/group") or ["root:x:0:"]
    passwd = [line for line in passwd if _name(line) not in dict(IDENTITIES)]
    group = [line for line in group if _name(line) not in dict(IDENTITIES)]
    for name, number in IDENTITIES:
        passwd.append(f"{name}:x:{number}:{number}::/home/{name}:{shell}")
        group.append(f"{name}:x:{number}:")
        tree.put(f"home/{name}", directory(0o700, number, number))
    if _TTY[0] not in map(_name, group):
        group.append(f"{_TTY[0]}:x:{_TTY[1]}:")
    put_file(tree, spool, "etc/passwd", _text(passwd))
    put_file(tree, spool, "etc/group", _text(group))
    # Nobody has a password: there is no way to log in but through the host's channel.
    shadow = [f"{_name(line)}:*:19723:0:99999:7:::" for line in passwd]
    put_file(tree, spool, "etc/shadow", _text(shadow), 0o640, gid=_number(group, "shadow"))


def _lines(tree: Tree, path: str) -> list[str]:
    node = tree.resolve(path)
    if node is None or node.size > 1024 * 1024:
        return []
    return [line for line in read(node).decode(errors="surrogateescape").splitlines() if ":" in line]


def _name(line: str) -> str:
    return line.partition(":")[0]


def _number(group: Sequence[str], name: str) -> int:
    for line in group:
        fields = line.split(":")
        if fields[0] == name and len(fields) > 2 and fields[2].isdecimal():
            return min(int(fields[2]), 2**31)
    return 0


def _text(lines: Sequence[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode(errors="surrogateescape")
