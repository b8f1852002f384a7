"""Three proxies as processes on a core of their own, and what /proc says about them."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

READY_SECONDS = 90.0
"""OpenBao, a thousand sessions with their handles, a CA: about ten on two idle cores."""


class BenchError(Exception):
    """The benchmark cannot be run, or what it measured is not what it claims. Says what to do."""


TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running proxy."""

    name: str
    pid: int

    def cpu_seconds(self) -> float:
        """User and system time so far, all threads, without children (OpenBao is one)."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self) -> int:
        """Resident bytes now."""
        return self._status("VmRSS")

    def peak_memory(self) -> int:
        """The most resident bytes so far."""
        return self._status("VmHWM")

    def _status(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise ProcessLookupError(f"{self.name} has ended")


def wait_for_port(address: tuple[str, int], process: subprocess.Popen[bytes], log: Path) -> None:
    """Until something listens there. BenchError with the log's end if the process dies first."""

    def listening() -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(address, 1).close()
            return True
        return False

    _wait(listening, process, log)


def wait_for_file(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    _wait(path.exists, process, log)


def _wait(there: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not there():
        if process.poll() is not None or time.monotonic() > deadline:
            end = log.read_text(errors="replace")[-2000:]
            raise BenchError(f"{process.args!r} did not start; its log ends:\n{end}")
        time.sleep(0.05)


@contextmanager
def running(
    command: list[str], log: Path, core: int | None, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process, on `core` if given, until the end of the block."""
    taskset = [] if core is None else ["taskset", "-c", str(core)]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*taskset, *command], stdout=stream, stderr=stream, env={**os.environ, **environment}
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
