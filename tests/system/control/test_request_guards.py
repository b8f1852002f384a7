"""A table of what browsers, rebinding and proxies would send."""

import asyncio
import socket

import pytest

from tests.system.control.conftest import Control

TABLE = [
    ({"Origin": "https://evil.example"}, 403, "browser"),
    ({"Origin": "http://localhost"}, 403, "browser"),
    ({"Origin": "null"}, 403, "browser"),
    ({"Sec-Fetch-Site": "none"}, 403, "browser"),
    ({"Access-Control-Request-Method": "POST"}, 403, "browser"),
    ({"Host": "evil.example"}, 421, "wrong_host"),
    ({"Host": "127.0.0.1.evil.example"}, 421, "wrong_host"),
    ({"Host": "localhost.evil.example"}, 421, "wrong_host"),
    ({"Host": "localhost."}, 421, "wrong_host"),
    ({"Host": "127.1"}, 421, "wrong_host"),
    ({"Host": "user@localhost"}, 421, "wrong_host"),
    ({"Host": None}, 400, "malformed"),
    ({"Forwarded": "for=10.0.0.1"}, 400, "malformed"),
    ({"X-Forwarded-For": "127.0.0.1"}, 400, "malformed"),
    ({"Via": "1.1 proxy"}, 400, "malformed"),
    ({"Proxy-Authorization": "Basic eDp5"}, 400, "malformed"),
    ({"Upgrade": "h2c"}, 400, "malformed"),
]


@pytest.mark.parametrize(("headers", "status", "reason"), TABLE, ids=str)
async def test_what_no_honest_client_sends_is_refused(
    control: Control, headers: dict[str, str | None], status: int, reason: str
) -> None:
    """Also with a good token, and where no caller is needed; and no CORS header says otherwise."""
    for path in ("/v1/sessions", "/healthz"):
        answer = await control.ask("GET", path, caller="operator", headers=headers)
        assert (answer.status, answer.reason) == (status, reason)
        assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]", "[::1]:9"])
async def test_loopback_by_any_of_its_names_is_taken(control: Control, host: str) -> None:
    """The port may have been forwarded."""
    assert (await control.ask("GET", "/healthz", headers={"Host": host})).status == 200


def raw(control: Control, request: bytes) -> bytes:
    with socket.create_connection(control.address, timeout=10) as connection:
        connection.sendall(request)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
        return answer


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET http://127.0.0.1/healthz HTTP/1.1",
        b"GET http://other.example/ HTTP/1.1",
        b"CONNECT other.example:443 HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
    ],
)
async def test_it_is_no_proxy(control: Control, request_line: bytes) -> None:
    """Absolute and authority form are refused, and the connection ends."""
    answer = await asyncio.to_thread(
        raw,
        control,
        request_line + b"\r\nHost: localhost\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    )
    assert answer.split()[1] == b"400"
    assert answer.count(b"HTTP/1") == 1


@pytest.mark.parametrize(
    "name", [b"Host: localhost", b"Authorization: Bearer x", b"Content-Type: text/plain"]
)
async def test_a_header_that_two_could_read_differently_is_refused(control: Control, name: bytes) -> None:
    """Twice the same one is one too many."""
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer y\r\nContent-Type: a/b\r\n"
    answer = await asyncio.to_thread(raw, control, head + name + b"\r\n\r\n")
    assert answer.split()[1] == b"400"


@pytest.mark.parametrize("control", [{"control_names": ("coatcheck.internal",)}], indirect=True)
async def test_more_names_can_be_set(control: Control) -> None:
    """For clients that reach it by a service's name."""
    assert (await control.ask("GET", "/healthz", headers={"Host": "coatcheck.internal:9"})).status == 200
