"""A real process with a secret in it, wherever a test wants it; and a sandbox made of such a process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coatcheck.inspection.region import Region, Scan
from coatcheck.inspection.residue import PAGE, Residues, Value
from tests.known_secrets import known_secret

SECRET = known_secret("planted")
VALUE = Value("openai", SECRET.encode())

# Its input comes in pieces, so that no copy of the whole is left in a buffer of its own making; and in hex of
# the bytes' complements, since hex of the bytes themselves is a form that is looked for.
PROGRAM = """
import mmap, os, sys
where = sys.argv[1]
read = lambda: bytes.fromhex(os.read(0, 4096).decode().strip()).translate(bytes(range(255, -1, -1)))
os.write(1, b"?")
first = read()
os.write(1, b"?")
second = read()
pages = mmap.mmap(-1, 5 * 4096)
if where == "whole":
    held = [first + second]
elif where == "pages":
    pages[4096 - len(first):4096] = first
    pages[3 * 4096:3 * 4096 + len(second)] = second
elif where == "protected":
    import ctypes
    pages[0:len(first) + len(second)] = first + second
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), 4096, 0) == 0
elif where == "memfd":
    memory = os.memfd_create("x")
    os.write(memory, first + second)
elif where == "deleted":
    memory = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
    os.unlink(sys.argv[2])
    os.write(memory, first + second)
elif where == "child":
    if os.fork() == 0:
        held = [first + second]
        os.write(1, b"!")
        os.read(0, 1)
        os._exit(0)
    os.wait()
if where in ("memfd", "deleted", "pages"):
    del first, second
os.write(1, b"!")
while True:
    os.read(0, 1) or os._exit(0)
"""


@contextmanager
def planted(
    where: str, *arguments: str, secret: str = SECRET, cut: int = 24, env: Mapping[str, str] | None = None
) -> Iterator[int]:
    """The pid of a process that sleeps with `secret` in it: `whole`, `pages` (cut at a page's edge, and its
    halves on pages that are no neighbours), `protected`, `memfd`, `deleted`, `child`, or `nothing`."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", PROGRAM, where, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(env or {}), start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        pieces = (secret[:cut], secret[cut:]) if where != "nothing" else ("nothing", "nothing")
        for piece in pieces:
            assert process.stdout.read(1) == b"?"
            os.write(process.stdin.fileno(), bytes(255 - byte for byte in piece.encode()).hex().encode())
        assert process.stdout.read(1) == b"!"
        until(lambda: state_of(process.pid) == "S")
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def until(true: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)


def scan_of(*values: Value) -> tuple[Scan, list[dict[str, Any]]]:
    """A scan for `values`, and what it tells."""
    told: list[dict[str, Any]] = []
    return Scan(Residues(values or (VALUE,)), told.append), told


def findings(told: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [each["finding"] for each in told if "finding" in each]


def region() -> Region:
    return Region("r", "process")


@dataclass
class ProcessSubject:
    """A sandbox that is one process: paused by SIGSTOP, as far as a test lets it."""

    pid: int
    sandbox: str = "sbx_0123456789abcdef"
    sessions: tuple[str, ...] = ("ses_1",)
    more: list[dict[str, object]] = field(default_factory=list)
    """Places besides the process."""
    paused: int = 0
    resumed: int = 0
    fails: str = ""
    """`pause`, `resume` or `remains` raises."""

    @property
    def running(self) -> bool:
        return state_of(self.pid) != "T"

    async def pause(self) -> bool:
        ran = self.running
        self.paused += 1
        os.kill(self.pid, signal.SIGSTOP)
        until(lambda: not self.running)
        if self.fails == "pause":
            raise RuntimeError("no")
        return ran

    async def resume(self) -> None:
        self.resumed += 1
        if self.fails == "resume":
            raise RuntimeError("no")
        os.kill(self.pid, signal.SIGCONT)
        until(lambda: self.running)

    async def remains(self) -> list[dict[str, object]]:
        if self.fails == "remains":
            raise RuntimeError("no")
        return [{"name": "processes", "kind": "process", "path": None, "pid": self.pid}, *self.more]


def sparse(path: Path, size: int, *placed: tuple[int, bytes]) -> Path:
    """A file of `size` bytes, all hole but for `placed`."""
    with path.open("wb") as file:
        file.truncate(size)
        for offset, text in placed:
            file.seek(offset)
            file.write(text)
    return path


__all__ = [
    "PAGE",
    "ProcessSubject",
    "findings",
    "planted",
    "region",
    "scan_of",
    "sparse",
    "state_of",
    "until",
]
