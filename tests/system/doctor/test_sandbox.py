"""What a sandbox's processes could undo, looked at on real ones."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coatcheck.doctor.finding import Level
from coatcheck.doctor.sandbox import Process, judge, read_status, sandbox
from tests.cli.transcript import coatcheck
from tests.doctor.subject import only

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and capabilities are given by root")

NOTHING = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
LOCKED = (*NOTHING, "--no-new-privs")


@contextmanager
def running(*prefix: str) -> Iterator[int]:
    """A process that was started so, once it is what it will be: `cat`."""
    process = subprocess.Popen([*prefix, "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while Path(f"/proc/{process.pid}/comm").read_text() != "cat\n":
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.005)
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_a_sandbox_without_capabilities_is_fine() -> None:
    """Whatever uid it has."""
    with running("unshare", "--net", *LOCKED) as pid:
        found = only(sandbox(pid))
    assert (found.level, found.message) == (
        Level.OK,
        "1 processes, none with a capability that could undo its network",
    )


@pytest.mark.parametrize(
    ("name", "level"),
    [("net_admin", Level.PROBLEM), ("sys_admin", Level.PROBLEM), ("net_raw", Level.WARNING)],
)
def test_a_capability_that_is_held_is_named(name: str, level: Level) -> None:
    """With the process, what it could do, and how to start it without."""
    with running("unshare", "--net", "setpriv", f"--bounding-set=-all,+{name}", "--no-new-privs") as pid:
        found = only(sandbox(pid))
    assert found.level is level
    assert found.message.startswith(f"process {pid} (cat) holds CAP_{name.upper()}: it could ")
    assert f"--cap-drop {name.upper()}" in found.hint and "drop: [ALL]" in found.hint


def test_one_that_can_be_had_by_a_setuid_program_is_a_warning() -> None:
    """An ordinary user now; the bounding set and no_new_privs say what may become of it."""
    user = ("--reuid=1000", "--regid=1000", "--clear-groups", "--bounding-set=-all,+net_admin")
    with running("unshare", "--net", "setpriv", *user) as pid:
        found = only(sandbox(pid))
        assert found.level is Level.WARNING and "can get CAP_NET_ADMIN by a setuid program" in found.message
    with running("unshare", "--net", "setpriv", *user, "--no-new-privs") as pid:
        assert only(sandbox(pid)).level is Level.OK


def test_every_process_of_the_sandbox_is_looked_at() -> None:
    """Not only the one that was named."""
    with running("unshare", "--net", *LOCKED) as pid:
        enter = ("nsenter", f"--net=/proc/{pid}/ns/net", "setpriv", "--bounding-set=-all,+net_admin")
        with running(*enter) as other, running(*enter):
            found = only(sandbox(pid))
    assert found.message.startswith(f"process {other} (cat) and 1 more holds CAP_NET_ADMIN")


def test_a_capability_counts_where_the_network_belongs_to() -> None:
    """Root of a user namespace of its own: over its own network it rules, over the sandbox's it does not."""
    with running("unshare", "--user", "--map-root-user", "--net") as pid:
        assert {found.level for found in sandbox(pid)} == {Level.PROBLEM, Level.WARNING}
    user = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups")
    with running("unshare", "--net", *user, "unshare", "--user", "--map-root-user") as pid:
        assert only(sandbox(pid)).level is Level.OK


def test_a_sandbox_on_this_machines_network_is_none() -> None:
    """No rule of ours would see it."""
    with running(*LOCKED) as pid:
        found = only(sandbox(pid))
    assert found.level is Level.PROBLEM and "own network namespace" in found.message


def test_who_cannot_be_looked_at(tmp_path: Path) -> None:
    """A wrong number, and the command's exit code."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert "there is no process" in only(sandbox(gone.pid)).message
    said = coatcheck("doctor", "--sandbox", str(gone.pid), cwd=tmp_path)
    assert said.code == 1 and said.out.startswith(f"problem  sandbox: there is no process {gone.pid}\n")


def test_a_name_steers_no_terminal() -> None:
    """A process chooses its own."""
    status = "Name:\t\x1b[2Jevil\nCapEff:\t0000000000001000\nCapBnd:\t0\nNoNewPrivs:\t1\n"
    process = read_status(7, status, 1)
    assert process == Process(7, "?[2Jevil", 0x1000, 0, True, 1)
    assert "\x1b" not in f"{judge([process], frozenset({1}))}"
    assert judge([process], frozenset({2})) == []
