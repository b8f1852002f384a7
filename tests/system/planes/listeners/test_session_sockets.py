"""A session's own sockets: nobody else comes to them, and nothing of them is left."""

import asyncio
from pathlib import Path

import pytest

from coatcheck.planes.listeners.session_sockets import (
    DNS,
    MAX_SOCKET_PATH,
    TRANSPARENT,
    SessionSockets,
    directory_of,
)
from tests.daemon import TestDaemon
from tests.planes.redirected import socket_of, whole_sandbox


async def nobody(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.fixture
def short_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s")


async def test_each_purpose_has_its_path_and_all_end_together(short_dir: Path) -> None:
    """Beside each other in a directory that is ours alone; one that a crash left is replaced."""
    at = directory_of(short_dir) / "0123"
    at.touch()
    sockets = SessionSockets()
    for purpose in ("", TRANSPARENT, DNS):
        path = await sockets.bind(at, purpose, nobody, backlog=1, limit=1000)
        assert path.is_socket()
        assert sockets.url(purpose) == f"unix://{path}"
    assert at.parent.stat().st_mode & 0o777 == 0o700
    sockets.close()
    assert list(at.parent.iterdir()) == []


async def test_a_path_that_the_kernel_would_not_take_says_what_to_set(short_dir: Path) -> None:
    """Cut off silently, it would be another path."""
    at = short_dir / ("x" * (MAX_SOCKET_PATH - len(str(short_dir)) - 1))
    sockets = SessionSockets()
    await sockets.bind(at, "", nobody, backlog=1, limit=1000)
    with pytest.raises(OSError, match="COATCHECK_RUNTIME_DIR"):
        await sockets.bind(at, TRANSPARENT, nobody, backlog=1, limit=1000)
    sockets.close()


async def test_a_sandbox_whose_sockets_cannot_all_be_opened_has_none(
    daemon: TestDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without its resolver would not be what was asked for."""
    bind = SessionSockets.bind

    async def full(self: SessionSockets, at: Path, purpose: str, *rest: object, **more: object) -> Path:
        if purpose == DNS:
            raise OSError(24, "Too many open files")
        return await bind(self, at, purpose, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(SessionSockets, "bind", full)
    with pytest.raises(OSError, match="Too many"):
        await whole_sandbox(daemon)
    assert list((daemon.settings.runtime / "sessions").iterdir()) == []


async def test_the_sockets_are_there_until_the_session_ends(daemon: TestDaemon) -> None:
    """However it ends."""
    sandbox = await whole_sandbox(daemon)
    paths = [Path(socket_of(sandbox, purpose)) for purpose in ("", TRANSPARENT, DNS)]
    assert all(path.is_socket() for path in paths)
    assert daemon.listeners is not None
    assert daemon.listeners.endpoint(sandbox.session.id) == f"unix://{paths[0]}"
    assert daemon.listeners.endpoint(sandbox.session.id, DNS) == f"unix://{paths[2]}"
    daemon.listeners.close_session(sandbox.session.id)
    assert not any(path.exists() for path in paths)
    assert daemon.listeners.endpoint(sandbox.session.id, DNS) is None


def test_a_session_without_a_listener_has_no_url() -> None:
    """And one on a port has none of a sandbox's sockets."""
    assert SessionSockets().url("") is None
    on_port = SessionSockets(address=("127.0.0.1", 7))
    assert (on_port.url(""), on_port.url(DNS)) == ("http://127.0.0.1:7", None)
