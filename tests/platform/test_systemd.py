"""sd_notify as the manager receives it."""

import contextlib
import socket
import time
from pathlib import Path

import pytest

from coatcheck.platform.systemd import SEND_SECONDS, notify


def receiver(address: str) -> socket.socket:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.settimeout(5)
    manager.bind(address)
    return manager


def test_the_manager_receives_the_message_as_one_datagram(tmp_path: Path) -> None:
    """Several assignments in one message stay together."""
    with receiver(str(tmp_path / "notify")) as manager:
        assert notify("READY=1\nSTATUS=serving", str(tmp_path / "notify"))
        assert manager.recv(4096) == b"READY=1\nSTATUS=serving"


def test_an_abstract_socket_is_reached_by_its_at_sign(tmp_path: Path) -> None:
    """As systemd writes it in containers."""
    with receiver(f"\0coatcheck-{tmp_path.name}") as manager:
        assert notify("READY=1", f"@coatcheck-{tmp_path.name}")
        assert manager.recv(4096) == b"READY=1"


@pytest.mark.parametrize("absent", [None, ""])
def test_without_systemd_nothing_is_sent(absent: str | None) -> None:
    """False, so that the caller knows."""
    assert notify("READY=1", absent) is False


def test_a_manager_that_is_gone_is_an_error(tmp_path: Path) -> None:
    """A unit of type notify would otherwise wait for its start time-out without a word in our log."""
    with pytest.raises(FileNotFoundError):
        notify("READY=1", str(tmp_path / "none"))


@pytest.mark.parametrize("address", ["vsock:2:1234", "relative/path"])
def test_an_address_of_another_kind_is_refused(address: str) -> None:
    """A relative path would depend on where we were started."""
    with pytest.raises(ValueError, match="NOTIFY_SOCKET"):
        notify("READY=1", address)


def test_a_manager_that_does_not_read_stops_us_for_a_second_at_most(tmp_path: Path) -> None:
    """Its queue full, telling it fails instead of hanging the daemon."""
    with receiver(str(tmp_path / "notify")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    other.sendto(b"x", str(tmp_path / "notify"))
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            notify("READY=1", str(tmp_path / "notify"))
        assert time.monotonic() - started < SEND_SECONDS + 30
