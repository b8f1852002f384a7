"""A tree as an ext4 filesystem in a file: mkfs.ext4 fills it, debugfs says who owns what. No mount, no root.

The files are laid out in a directory of ours as plain files; owners, set-uid bits and times are written into
the filesystem's inodes afterwards, so that a normal user builds the same image as root does.
"""

import os
import subprocess
from pathlib import Path

from coatcheck.images.problem import ImageError
from coatcheck.images.programs import check_space, find, run
from coatcheck.images.tree import MAX_PATH, Node, Tree

BLOCK = 4096
INODE = 256
_MIB = 1024 * 1024
_SPARE = 16 * _MIB
"""Bytes for the filesystem's own tables beyond those counted; nobody writes to it, so it needs no room."""
_FEATURES = (
    "ext_attr,dir_index,filetype,extent,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize"
)
EPOCH = 1_704_067_200
"""2024-01-01. Times that are nobody's, such as when an inode was changed: the same in every build."""
_UUID = "c0a7c4ec-0000-4000-8000-000000000001"
"""Of the filesystem and of its directory hashes: it is read-only, and the same content is the same file."""
_SECONDS = 600
_HINT = "if there is space and memory, this is a defect: please report it with these words"


def lay_out(tree: Tree, staging: Path) -> None:
    """Put the tree's files into the new directory `staging`, on the spool's filesystem: they leave the spool.

    Modes and times are as in the tree, as far as we can still read all of it; never a set-uid bit.
    """
    paths = list(tree.walk())
    placed: dict[int, str] = {}
    staging.mkdir(mode=0o700)
    for path, node in paths:
        _check(path)
        where = f"{staging}{path}"
        if node.is_directory:
            if path:
                os.mkdir(where, 0o700)
        elif id(node) in placed:
            os.link(f"{staging}{placed[id(node)]}", where, follow_symlinks=False)
        else:
            placed[id(node)] = path
            _place(node, where)
            os.utime(where, (node.mtime, node.mtime), follow_symlinks=False)
    for path, node in paths:
        if not node.is_link and path:  # the top stays closed to others
            os.chmod(f"{staging}{path}", _readable(node))


def _check(path: str) -> None:
    if len(os.fsencode(path)) > MAX_PATH or any(ord(letter) < 32 or ord(letter) == 127 for letter in path):
        raise ImageError(f"an image cannot hold the path {path[:200]!r}", "rename it, or leave it out")


def _place(node: Node, where: str) -> None:
    if node.is_link:
        os.symlink(node.target, where)
    elif node.content is None:
        os.close(os.open(where, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    else:
        os.rename(node.content, where)


def write(tree: Tree, staging: Path, image: Path) -> None:
    """Make the ext4 filesystem `image` of `staging`, with the tree's owners, modes and times."""
    paths = list(tree.walk())
    for path, node in reversed(paths):
        if node.is_directory:  # what came into them has changed their times
            os.utime(f"{staging}{path}", (node.mtime, node.mtime))
    _make(paths, image, staging)
    _own(paths, image)


def _readable(node: Node) -> int:
    """The mode while mkfs.ext4, which may not be root, reads it; never a set-uid bit."""
    return node.mode & 0o777 | (0o700 if node.is_directory else 0o600)


def _make(paths: list[tuple[str, Node]], image: Path, staging: Path) -> None:
    count = len(paths) + 64
    blocks = sum(-(-node.size // BLOCK) + 1 for _, node in paths)
    size = (blocks * BLOCK * 102 // 100 + count * INODE + _SPARE) // _MIB * _MIB
    with image.open("xb") as file:
        os.truncate(file.fileno(), size)
    command = [
        "mkfs.ext4", "-q", "-F", "-d", str(staging), "-b", str(BLOCK), "-I", str(INODE), "-N", str(count),
        "-m", "0", "-U", _UUID, "-L", "coatcheck-root",
        # All named, as each release of e2fsprogs has other defaults. No journal: nobody writes. No checksums:
        # they would cost each read of an emulated guest.
        "-O", f"none,{_FEATURES}",
        "-E", f"hash_seed={_UUID},root_owner=0:0,lazy_itable_init=0,nodiscard", str(image),
    ]  # fmt: skip
    environment = {
        "SOURCE_DATE_EPOCH": str(EPOCH),
        "E2FSPROGS_FAKE_TIME": str(EPOCH),
        "MKE2FS_CONFIG": "/dev/null",
    }
    run(command, _HINT, seconds=_SECONDS, environment=environment)


def _own(paths: list[tuple[str, Node]], image: Path) -> None:
    ours, group = os.geteuid(), os.getegid()
    lines: list[str] = []
    for path, node in paths:
        # Quoted as libss wants it; control characters were refused above, so a name cannot be a command.
        name = '"' + (path or "/").replace('"', '""') + '"'
        if path:
            lines += [f"sif {name} uid {node.uid}"] if node.uid != ours else []
            lines += [f"sif {name} gid {node.gid}"] if node.gid != group else []
        if not node.is_link and (node.mode & 0o7777) != _readable(node):
            lines.append(f"sif {name} mode 0{node.mode:o}")
        # When something was read last depends on who has read it here: mkfs.ext4, for one.
        lines += [f"sif {name} ctime @{EPOCH}", f"sif {name} atime @{EPOCH}"]
    lines += [f"sif /lost+found ctime @{EPOCH}", f"sif /lost+found atime @{EPOCH}"]
    script = os.fsencode("\n".join(lines) + "\n")
    environment = ["/usr/bin/env", "LC_ALL=C.UTF-8", f"E2FSPROGS_FAKE_TIME={EPOCH}"]
    done = subprocess.run(
        [*environment, find("debugfs"), "-w", "-f", "-", str(image)],
        input=script,
        capture_output=True,
        timeout=_SECONDS,
        check=False,
    )
    # It reports what it could not do and goes on, and ends well; only its first line is its name.
    said = [
        line for line in done.stderr.decode(errors="replace").splitlines() if not line.startswith("debugfs ")
    ]
    if done.returncode or said:
        check_space("\n".join(said))
        raise ImageError(f"debugfs failed: {'; '.join(said[:3]) or done.returncode}", _HINT)
