"""How many are let in, and for how long."""

import asyncio
import socket
import time

import pytest

from coatcheck.control import listener as door
from tests.system.control.conftest import Control

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


def read_all(connection: socket.socket) -> bytes:
    answer = b""
    try:
        while chunk := connection.recv(65536):
            answer += chunk
    except ConnectionResetError:
        pass
    return answer


async def test_a_full_house_turns_others_away_and_leaves_the_socket_free(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full TCP port does not lock out the callers on the Unix socket."""
    monkeypatch.setattr(door, "MAX_CONNECTIONS", 3)
    held = [socket.create_connection(control.address, timeout=10) for _ in range(3)]

    def one_more() -> bytes:
        with socket.create_connection(control.address, timeout=10) as connection:
            try:
                connection.sendall(HEAD + b"\r\n")
            except OSError:
                return b""
            return read_all(connection)

    turned_away = b"not yet"
    for _ in range(50):  # until the three were accepted, on a busy machine
        if (turned_away := await asyncio.to_thread(one_more)) == b"":
            break
        await asyncio.sleep(0.05)
    assert turned_away == b""
    assert (await asyncio.to_thread(control.owner.health))["status"] == "ok"
    for connection in held:
        connection.close()
    for _ in range(50):
        await asyncio.sleep(0.05)
        if (await asyncio.to_thread(one_more_ok, control)).startswith(b"HTTP/1.1 200"):
            break
    assert (await asyncio.to_thread(one_more_ok, control)).startswith(b"HTTP/1.1 200")


def one_more_ok(control: Control) -> bytes:
    with socket.create_connection(control.address, timeout=10) as connection:
        try:
            connection.sendall(HEAD + b"Connection: close\r\n\r\n")
        except OSError:
            return b""
        return read_all(connection)


async def test_a_head_that_drips_is_given_up(short_head: None, control: Control) -> None:
    """A byte now and then does not keep a connection (slow loris)."""

    def drip() -> float:
        with socket.create_connection(control.address, timeout=10) as connection:
            begun = time.monotonic()
            connection.settimeout(0.1)
            while time.monotonic() - begun < 8:
                try:
                    connection.sendall(b"G")
                    if connection.recv(100) == b"":
                        break
                except TimeoutError:
                    continue
                except OSError:
                    break
            return time.monotonic() - begun

    assert await asyncio.to_thread(drip) < 5


@pytest.fixture
def short_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the daemon starts."""
    monkeypatch.setattr(door, "IDLE_SECONDS", 0.5)


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x00\xa5\x01\x00\x00",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        HEAD + b"A: " + b"x" * 70000 + b"\r\n\r\n",
        HEAD + b"".join(b"h%d: x\r\n" % n for n in range(500)) + b"\r\n",
        b"GET /" + b"x" * 70000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"Content-Length: +5\r\n\r\n",
    ],
    ids=lambda raw: repr(raw[:24]) + str(len(raw)),
)
async def test_what_is_no_request_is_refused_as_json(control: Control, request_: bytes) -> None:
    """And nothing of it comes back."""

    def send() -> bytes:
        with socket.create_connection(control.address, timeout=15) as connection:
            try:
                connection.sendall(request_)
            except OSError:
                pass
            return read_all(connection)

    answer = await asyncio.to_thread(send)
    assert answer.split()[1] == b"400", answer
    assert b'"reason":"malformed"' in answer
    assert b"xxxx" not in answer
