"""The control socket, in every state in which one is found."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from coatcheck.doctor.control import control_socket, daemon_pid
from coatcheck.doctor.finding import Level
from tests.doctor.subject import only, subject


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cct-") as made:
        yield Path(made) / "control.sock"


def test_a_daemon_that_answers_is_known_by_its_process(path: Path, tmp_path: Path) -> None:
    """By the kernel's word, not by a file's."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert daemon_pid(path) == os.getpid()
        found = only(control_socket(subject(path.parent, control_socket=path)))
        assert (found.level, found.message) == (Level.OK, f"a daemon answers, process {os.getpid()}")


def test_no_socket_a_stale_one_and_a_file_in_its_place(path: Path) -> None:
    """Three different next steps."""
    given = subject(path.parent, control_socket=path)
    absent = only(control_socket(given))
    assert absent.level is Level.WARNING and absent.hint == "start it: coatcheck serve"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    stale = only(control_socket(given))
    assert stale.level is Level.PROBLEM and "no daemon answers" in stale.message
    path.unlink()
    path.write_text("")
    assert "is not a socket" in only(control_socket(given)).message
    assert daemon_pid(path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_socket_that_is_closed_to_us(path: Path) -> None:
    """Asked as somebody else, in a child."""
    path.parent.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(0o600)
        code = (
            "import os, sys; from pathlib import Path;"
            "from coatcheck.doctor.control import control_socket;"
            "from tests.doctor.subject import only, subject;"
            "os.setuid(65534); path = Path(sys.argv[1]);"
            "print(only(control_socket(subject(path.parent, control_socket=path))).hint)"
        )
        root = Path(__file__).parent.parent.parent
        command = [sys.executable, "-c", code, str(path)]
        said = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    assert "COATCHECK_CONTROL_UIDS" in said


def test_paths_that_are_too_long_for_sockets(tmp_path: Path) -> None:
    """The kernel's limit, for the control socket and for sessions' own beside it."""
    long = tmp_path / ("x" * 100)
    found = only(control_socket(subject(tmp_path, control_socket=long / "control.sock")))
    assert found.level is Level.PROBLEM and "at most 107" in found.message
    found = only(control_socket(subject(tmp_path, control_socket=Path("/tmp/c.sock"), runtime_dir=long)))
    assert found.level is Level.PROBLEM and "sessions' sockets" in found.message
