"""Sockets before anybody connects."""

import socket
from pathlib import Path

import pytest

from coatcheck.control.sockets import ControlSocketError, bind_tcp, bind_unix, server_tls


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s") / "run/control.sock"


def test_a_dead_daemons_socket_is_replaced(path: Path) -> None:
    """`kill -9` leaves one behind."""
    bind_unix(path, 0o600).close()
    assert path.exists()
    again = bind_unix(path, 0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    again.close()


def test_a_living_daemons_socket_is_not(path: Path) -> None:
    """Two daemons on one path would each hold half of the sessions."""
    with bind_unix(path, 0o600) as first:
        first.listen()
        with pytest.raises(ControlSocketError, match="another daemon"):
            bind_unix(path, 0o600)


def test_a_file_in_the_way_stays(path: Path) -> None:
    """It is somebody's."""
    path.parent.mkdir()
    path.write_text("mine")
    with pytest.raises(ControlSocketError, match="not a socket"):
        bind_unix(path, 0o600)
    assert path.read_text() == "mine"


def test_a_path_that_is_too_long_is_said_so(tmp_path: Path) -> None:
    """The kernel's own message is "AF_UNIX path too long" at best."""
    with pytest.raises(ControlSocketError, match="107 bytes") as refused:
        bind_unix(tmp_path / ("x" * 120), 0o600)
    assert "COATCHECK_CONTROL_SOCKET" in refused.value.hint


def test_nobody_connects_before_it_listens(path: Path) -> None:
    """So the mode is set in time."""
    with bind_unix(path, 0o600), socket.socket(socket.AF_UNIX) as client:
        with pytest.raises(ConnectionRefusedError):
            client.connect(str(path))


def test_a_taken_port_is_said_so() -> None:
    """With the setting to change."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(ControlSocketError) as refused:
            bind_tcp("127.0.0.1", taken.getsockname()[1])
    assert "COATCHECK_CONTROL_PORT" in refused.value.hint


def test_certificates_that_cannot_be_used_are_said_so(tmp_path: Path) -> None:
    """Missing, or no PEM."""
    (tmp_path / "bad.pem").write_text("bad")
    for name in ("missing.pem", "bad.pem"):
        with pytest.raises(ControlSocketError, match="certificates"):
            server_tls(tmp_path / name, None)
