"""`python -m tests.bench.files`: one file of gigabytes into a microVM and out, by `coatcheck sandbox cp`.

What came back is compared with what went in, and nobody on the way may hold it: how far the memory of
daemon and supervisor rose, and how high the command's was, stand beside the speed.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coatcheck.client.sandbox.blocking import BlockingClient
from tests.bench.report import say
from tests.bench.sandbox_https import daemon

MIB = 1024 * 1024
INSIDE = "/home/agent/large"
SAMPLE_SECONDS = 0.1


@dataclass
class Watched:
    """Processes by name, and the most that each rose above what it had when it was first seen, in MiB."""

    first: dict[int, float] = field(default_factory=dict)
    rise: dict[str, float] = field(default_factory=dict)

    def look(self) -> None:
        for pid, name in _ours():
            resident = _resident_mib(pid)
            if resident is None:
                continue
            before = self.first.setdefault(pid, resident)
            self.rise[name] = max(self.rise.get(name, 0.0), resident - before)


@contextmanager
def watching() -> Iterator[Watched]:
    """As long as the block lasts."""
    watched, over = Watched(), threading.Event()

    def watch() -> None:
        while not over.wait(SAMPLE_SECONDS):
            watched.look()

    watched.look()
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield watched
    finally:
        over.set()
        thread.join()


def _ours() -> Iterator[tuple[int, str]]:
    """Of the daemon that this process started: itself, and the supervisors that it started."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"serve" in words and b"coatcheck" in words:
                yield int(entry.name), "daemon"
            elif b"coatcheck.launcher" in words:
                yield int(entry.name), "supervisor"


def _resident_mib(pid: int) -> float | None:
    try:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return None
    return int(found[1]) / 1024 if found else None


def write_file(path: Path, mib: int) -> str:
    """Of bytes that nothing compresses; its digest."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(mib):
            piece = os.urandom(MIB)
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def copy(control: Path, source: str, target: str) -> tuple[float, float]:
    """Seconds, and the command's own highest resident memory in MiB."""
    command = [sys.executable, "-m", "coatcheck", "sandbox", "cp", source, target, "--socket", str(control)]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(process.stderr.read() if process.stderr else "")
    return time.perf_counter() - began, usage.ru_maxrss / 1024


def measure(mib: int) -> None:
    with tempfile.TemporaryDirectory(prefix="coatcheck-bench-") as name:
        directory = Path(name)
        with daemon(directory) as control, BlockingClient(control) as client:
            wanted: dict[str, Any] = {
                "tenant": "bench",
                "subject": "files",
                "policy": "policy",
                "backend": "microvm",
                "disk_mib": mib + 1024,
            }
            with client.create(**wanted) as sandbox:
                say(f"writing a file of {mib} MiB")
                digest = write_file(directory / "large", mib)
                inside = f"{sandbox.id}:{INSIDE}"
                for way, source, target in (
                    ("in", str(directory / "large"), inside),
                    ("out", inside, str(directory / "back")),
                ):
                    with watching() as watched:
                        seconds, command = copy(control, source, target)
                    rises = " ".join(
                        f"{who}_rise_mib={mib_:.1f}" for who, mib_ in sorted(watched.rise.items())
                    )
                    speed = f"mib_per_s={mib / seconds:.1f}"
                    print(f"files way={way} mib={mib} {speed} {rises} command_mib={command:.0f}", flush=True)
        with (directory / "back").open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise SystemExit("what came back is not what went in")
        print("files same=yes")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.files", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--mib", type=int, default=4096, help="the file's size (default 4096)")
    measure(parser.parse_args().mib)


if __name__ == "__main__":
    main()
