"""The machine: versions, what may write our memory to a disk, how many files we may open."""

import re
import resource
import sys
from importlib import metadata
from pathlib import Path

from coatcheck.doctor.finding import Finding, Subject, ok, problem, warning

OLDEST_PYTHON = (3, 12)
ENOUGH_FILES = 8192
"""Two sockets a connection, 2,048 connections at once, a listener a session: below it, 503 in busy hours."""


def versions(subject: Subject | None = None) -> list[Finding]:
    """Python and the exact mitmproxy that the plane is written against."""
    check = "versions"
    if sys.version_info < OLDEST_PYTHON:
        running = ".".join(map(str, sys.version_info[:3]))
        return problem(check, f"this is Python {running}", "install coatcheck under Python 3.12 or newer")
    return compare_mitmproxy(metadata.requires("coatcheck") or [], metadata.version("mitmproxy"))


def compare_mitmproxy(requirements: list[str], installed: str) -> list[Finding]:
    """Another release has another connection handler: checks could be skipped without an error."""
    pins = [match[1] for text in requirements if (match := re.fullmatch(r"mitmproxy==([\w.]+)", text))]
    if pins and installed != pins[0]:
        return problem(
            "versions",
            f"mitmproxy {installed} is installed, and coatcheck is written for {pins[0]}",
            f"pip install mitmproxy=={pins[0]}",
        )
    running = ".".join(map(str, sys.version_info[:3]))
    return ok("versions", f"Python {running}, mitmproxy {installed}")


def memory(subject: Subject, proc: Path = Path("/proc")) -> list[Finding]:
    """Swap, and other processes of the same user: two ways by which secrets leave memory.

    Core dumps are no matter: the daemon sets their limit to zero itself.
    """
    check, found = "memory", []
    swaps = _lines(proc / "swaps")[1:]
    if swaps:
        areas = ", ".join(line.split()[0] for line in swaps)
        found += warning(
            check,
            f"swap is on ({areas}): secrets in memory may be written to it",
            "turn it off, encrypt it, or set MemorySwapMax=0 in the unit, as the shipped unit does",
        )
    scope = "".join(_lines(proc / "sys/kernel/yama/ptrace_scope"))
    if scope == "0":
        found += warning(
            check,
            "any process of the daemon's user may read its memory (kernel.yama.ptrace_scope is 0)",
            "sysctl kernel.yama.ptrace_scope=1, and give the daemon a user of its own",
        )
    return found or ok(check, "no swap, and memory is closed to other processes")


def open_files(subject: Subject, proc: Path = Path("/proc")) -> list[Finding]:
    """The limit of open files, of the running daemon where there is one."""
    check = "open files"
    if subject.daemon_pid is not None:
        lines = _lines(proc / str(subject.daemon_pid) / "limits")
        words = next((line.split() for line in lines if line.startswith("Max open files")), [])
        soft, whose = (int(words[3]) if len(words) > 3 and words[3].isdigit() else None), "the daemon"
    else:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        soft, whose = (None if limit == resource.RLIM_INFINITY else limit), "a daemon started here"
    if soft is not None and soft < ENOUGH_FILES:
        return warning(
            check,
            f"{whose} may open {soft} files; 2,048 connections and their sessions need {ENOUGH_FILES}",
            "LimitNOFILE=65536 in the systemd unit, or ulimit -n 65536",
        )
    return ok(check, f"{whose} may open {'any number of' if soft is None else soft} files")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []  # not on this kernel, or hidden from us
