"""Versions, swap, ptrace and limits."""

import os
import subprocess
import sys
from pathlib import Path

from coatcheck.doctor.finding import Level
from coatcheck.doctor.machine import compare_mitmproxy, memory, open_files, versions
from tests.doctor.subject import only, subject


def test_another_mitmproxy_than_the_pinned_one_is_a_problem() -> None:
    """The plane is written against one release's connection handler."""
    found = only(compare_mitmproxy(["mitmproxy==12.2.3", "aiohttp"], "12.3.0"))
    assert found.level is Level.PROBLEM and "12.3.0" in found.message and "12.2.3" in found.hint


def test_the_installed_versions_are_right() -> None:
    """In this environment, which the lock made."""
    assert only(versions()).level is Level.OK


def test_swap_and_open_memory_are_warned_about(tmp_path: Path) -> None:
    """By what the kernel says in /proc."""
    (tmp_path / "sys/kernel/yama").mkdir(parents=True)
    (tmp_path / "swaps").write_text("Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n")
    (tmp_path / "sys/kernel/yama/ptrace_scope").write_text("0\n")
    swap, ptrace = memory(subject(tmp_path), tmp_path)
    assert swap.level is ptrace.level is Level.WARNING
    assert "/dev/sda2" in swap.message and "ptrace_scope is 0" in ptrace.message
    (tmp_path / "swaps").write_text("Filename Type Size Used Priority\n")
    (tmp_path / "sys/kernel/yama/ptrace_scope").write_text("1\n")
    assert only(memory(subject(tmp_path), tmp_path)).level is Level.OK


def test_a_daemon_with_few_files_is_found_by_its_own_limit(tmp_path: Path) -> None:
    """Ours may be higher: systemd gives a service its own."""
    code = (
        "import resource, sys; hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard)); print(flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        other.stdout.readline()
        found = only(open_files(subject(tmp_path, daemon_pid=other.pid)))
        assert found.level is Level.WARNING and "the daemon may open 300 files" in found.message
    finally:
        other.kill()
        other.communicate()


def test_a_daemon_with_enough_files_is_fine(tmp_path: Path) -> None:
    """A limit in the form in which the kernel writes it."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7/limits").write_text(
        "Max open files            65536                65536                files\n"
    )
    found = only(open_files(subject(tmp_path, daemon_pid=7), tmp_path))
    assert (found.level, found.message) == (Level.OK, "the daemon may open 65536 files")
    assert only(open_files(subject(tmp_path, daemon_pid=os.getpid()))).message.startswith(
        "the daemon may open"
    )
