"""Runs a program that reads what strangers made: in namespaces of its own, under limits.

It sees programs and libraries, and what it is given, all read-only, and may write in one directory. It has no
capability, no processes but its own, no network unless it fetches, and none of the caller's environment but
the names of proxies.
"""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coatcheck.images.problem import ImageError
from coatcheck.images.programs import check_space, find

WORK = Path("/coatcheck-image")
"""Where the program finds the directory that it may write."""
_PROGRAMS = (Path("/usr"), Path("/etc/alternatives"), Path("/etc/ld.so.cache"))
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
NETWORK = (
    *(Path("/etc/resolv.conf"), Path("/etc/hosts"), Path("/etc/nsswitch.conf")),
    *(Path("/etc/ssl"), Path("/etc/pki"), Path("/etc/ca-certificates"), Path("/etc/containers")),
)
"""What a program needs to reach a registry: names, public CAs, and the machine's settings for registries."""
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_CLEAN = (
    "exec env -i LC_ALL=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "
    f"TMPDIR={WORK} HOME={WORK} XDG_RUNTIME_DIR={WORK} PYTHONDONTWRITEBYTECODE=1 "
    + " ".join(f'${{{name}:+"{name}=${name}"}}' for name in _PROXIES)
    + ' "$@"'
)
"""sh does it, so that nothing here reads the environment, which may hold anything."""
_NEEDED = "bubblewrap keeps what an archive can do apart from this machine: see `coatcheck doctor`"
_MAX_LINE = 64 * 1024
_SAID = 1500
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    seconds: float
    """Of wall-clock time, and of CPU time of each process."""
    memory: int
    """Bytes of one process's address space."""
    disk: int
    """Bytes of one file, and of everything in the directory that it may write."""
    files: int = 256
    """Open at once by one process."""


class Ended(ImageError):
    """The program failed, or was ended. `said`: the end of what it wrote on standard error."""

    def __init__(self, message: str, hint: str, said: str = "") -> None:
        super().__init__(message, hint)
        self.said = said


def run(
    command: Sequence[str],
    work: Path,
    limits: Limits,
    *,
    shown: Sequence[tuple[Path, Path]] = (),
    network: bool = False,
    line: Callable[[str], None] = lambda _line: None,
) -> None:
    """Run it to its end in `work`, which is `WORK` for it. `shown`: what it sees beside programs, and where.
    `line` gets each line that it writes. Ended when it fails, or reaches a limit."""
    words = [
        *("/bin/sh", "-c", _CLEAN, "sh"),
        *(find("prlimit"), "--core=0", f"--as={limits.memory}", f"--fsize={limits.disk}"),
        *(f"--cpu={int(limits.seconds)}", f"--nofile={limits.files}", "--"),
        *_namespaces(work, shown, network=network),
        *("--", *command),
    ]
    name = Path(command[0]).name
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
    )
    assert process.stdout is not None and process.stderr is not None  # noqa: S101 - PIPE
    said: list[str] = []
    readers = [
        threading.Thread(target=_pass_on, args=(process.stdout.fileno(), line), daemon=True),
        threading.Thread(target=_pass_on, args=(process.stderr.fileno(), said.append), daemon=True),
    ]
    try:
        for reader in readers:
            reader.start()
        reason = _watch(process, work, limits)
    finally:
        process.kill()  # bubblewrap's child ends with it, and everything in the namespace with that
        process.wait()
        for reader in readers:
            reader.join(_LOOK_SECONDS)
        process.stdout.close()
        process.stderr.close()
    text = "\n".join(said)[-_SAID:].strip()
    if reason:
        raise Ended(
            f"{name} {reason} and was ended", "this archive is not to be trusted, or not for a sandbox", text
        )
    if process.returncode:
        check_space(text)
        hint = _NEEDED if text.startswith("bwrap:") else "see what it says"
        raise Ended(f"{name} failed: {text or process.returncode}", hint, text)


def python(module: str, *arguments: str) -> tuple[list[str], list[tuple[Path, Path]]]:
    """A module of ours as a command, and what it is to be shown: this interpreter and this package."""
    package = Path(__file__).parents[2]
    places = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent, package}
    return [sys.executable, "-I", "-m", module, *arguments], [(place, place) for place in sorted(places)]


def _namespaces(work: Path, shown: Sequence[tuple[Path, Path]], *, network: bool) -> Iterator[str]:
    yield find("bwrap")
    yield from ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
    yield from () if network else ("--unshare-net",)
    yield from ("--hostname", "images", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
    for path in (*_PROGRAMS, *(NETWORK if network else ())):
        yield from ("--ro-bind-try", str(path), str(path))
    for name in _MERGED:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    for path, there in shown:
        yield from ("--ro-bind", str(path), str(there))
    yield from ("--proc", "/proc", "--dev", "/dev", "--bind", str(work), str(WORK))
    yield from ("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(WORK))


def _watch(process: "subprocess.Popen[bytes]", work: Path, limits: Limits) -> str:
    """Wait for its end. Which limit it reached, or nothing."""
    left = limits.seconds
    while left > 0:
        try:
            process.wait(_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            left -= _LOOK_SECONDS
        else:
            return ""
        if _size(work) > limits.disk:
            return f"has written more than {limits.disk / 1024**3:.1f} GiB"
    return f"has taken longer than {limits.seconds:g} s"


def _size(directory: Path) -> int:
    """Bytes on the disk below it, as it changes."""
    total = 0
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for one in entries:
            with contextlib.suppress(OSError):
                if one.is_dir(follow_symlinks=False):
                    total += _size(Path(one.path))
                else:
                    total += one.stat(follow_symlinks=False).st_blocks * 512
    return total


def _pass_on(descriptor: int, line: Callable[[str], None]) -> None:
    """Lines as text for a terminal; those that are too long are cut, and nothing else is kept."""
    with open(descriptor, "rb", closefd=False) as file:
        while content := file.readline(_MAX_LINE):
            text = content.decode(errors="replace").rstrip("\n")
            line("".join(letter if letter.isprintable() else "?" for letter in text))
