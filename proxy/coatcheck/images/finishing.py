"""What only programs can make, run in the laid-out root: the linker's cache and Python's byte-code.

Both save time in each guest: a root is read-only, so what Python compiled there would be compiled again by
every process, ten times slower than here. Only for roots from Debian packages: programs of theirs run on the
host.
"""

import os
from collections.abc import Callable
from pathlib import Path

from coatcheck.images.ext4 import EPOCH
from coatcheck.images.problem import ImageError
from coatcheck.images.programs import run
from coatcheck.images.tree import Tree, directory, file

_HINT = "if there is space and memory, this is a defect: please report it with these words"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_LOADER = f"{_LIBRARIES}/ld-linux-x86-64.so.2"
_NOT_COMPILED = r"/(lib2to3|idlelib|turtledemo|ensurepip|test|tests|pydoc_data)/"
"""Nobody starts these in a hurry."""
_SECONDS = 300


def finish(tree: Tree, staging: Path, tell: Callable[[str], None]) -> None:
    """Make the caches in `staging`, and enter them into `tree`."""
    run(["ldconfig", "-r", str(staging), "-X"], _HINT, seconds=_SECONDS)
    _enter(tree, staging, staging / "etc/ld.so.cache")
    if (auxiliary := staging / "var/cache/ldconfig").is_dir():
        for left in auxiliary.iterdir():
            left.unlink()
        if tree.find("var/cache/ldconfig") is None:
            auxiliary.rmdir()
    compiled = [staging / name for name in _python_directories(tree)]
    if compiled:
        tell("compiling Python's library")
        _compile(staging, compiled)
        for directory_of_source in compiled:
            for cached in sorted(directory_of_source.rglob("__pycache__")):
                _enter_all(tree, staging, cached)


def _python_directories(tree: Tree) -> list[str]:
    """python3.11 and python3 (packages' modules) below usr/lib, where a python3 is there to compile them."""
    lib = tree.find("usr/lib")
    if lib is None or tree.resolve("usr/bin/python3") is None or tree.find(_LOADER) is None:
        return []
    return [f"usr/lib/{name}" for name in sorted(lib.children) if name.startswith("python3")]


def _compile(staging: Path, directories: list[Path]) -> None:
    # Started by its own loader: neither its interpreter's path nor its libraries are this machine's.
    program = staging / "usr/bin" / os.readlink(staging / "usr/bin/python3")
    if program.parent != staging / "usr/bin" or program.is_symlink():
        raise ImageError(f"the package's python3 points to {program.name}, which is not beside it", _HINT)
    run(
        [
            str(staging / _LOADER), "--library-path", str(staging / _LIBRARIES), str(program), "-S", "-s",
            "-m", "compileall", "-q", "-x", _NOT_COMPILED,
            # Not the hash of each source, which would have to be read for it at each import.
            "--invalidation-mode", "timestamp",
            # The paths that tracebacks show; no link is followed out of the root.
            "-s", str(staging), "-p", "/", "-e", str(staging), *map(str, directories),
        ],
        _HINT,
        seconds=_SECONDS,
        # One process and one seed: what a file compiles to depends on what the same process compiled before.
        environment={"PYTHONHOME": str(staging / "usr"), "PYTHONPATH": "", "PYTHONHASHSEED": "0"},
    )  # fmt: skip


def _enter_all(tree: Tree, staging: Path, cached: Path) -> None:
    tree.put(str(cached.relative_to(staging)), directory(mtime=EPOCH))
    cached.chmod(0o755)
    for path in sorted(cached.iterdir()):
        _enter(tree, staging, path)


def _enter(tree: Tree, staging: Path, path: Path) -> None:
    path.chmod(0o644)
    os.utime(path, (EPOCH, EPOCH))
    tree.put(str(path.relative_to(staging)), file(path.stat().st_size, EPOCH))
