"""Bodies and queries: strict, bounded, one reading."""

import asyncio
import json
import socket
from typing import Any

import pytest

from coatcheck.control import reading
from tests.system.control.conftest import Control, token_of

GOOD = {"tenant": "acme", "subject": "a", "policy": "default", "listen": "none"}


async def post(control: Control, raw: bytes, headers: dict[str, str | None] | None = None) -> tuple[int, str]:
    answer = await control.ask("POST", "/v1/sessions", caller="ci-launcher", raw=raw, headers=headers)
    return answer.status, answer.json["error"]["reason"] if answer.status >= 400 else "ok"


async def test_a_good_body_is_taken(control: Control) -> None:
    """With and without a charset."""
    for kind in ("application/json", "application/json; charset=utf-8", "Application/JSON"):
        assert await post(control, json.dumps(GOOD).encode(), {"Content-Type": kind}) == (201, "ok")


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "text/json", None]
)
async def test_only_json_is_read(control: Control, kind: str | None) -> None:
    """The other types are those that a page may send without being asked."""
    assert await post(control, json.dumps(GOOD).encode(), {"Content-Type": kind}) == (415, "media_type")


async def test_a_compressed_body_is_not_opened(control: Control) -> None:
    """No bomb, and no second reading."""
    headers: dict[str, str | None] = {"Content-Encoding": "gzip"}
    assert await post(control, json.dumps(GOOD).encode(), headers) == (415, "media_type")
    utf16 = {"Content-Type": "application/json; charset=utf-16"}
    assert await post(control, json.dumps(GOOD).encode("utf-16"), {**utf16}) == (415, "media_type")


@pytest.mark.parametrize(
    "wrong",
    [
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b"[" * 30000,
        json.dumps(GOOD | {"extra": 1}).encode(),
        json.dumps(GOOD | {"tenant": ""}).encode(),
        json.dumps(GOOD | {"tenant": "a\nb"}).encode(),
        json.dumps(GOOD | {"tenant": "t" * 201}).encode(),
        json.dumps(GOOD | {"tenant": 5}).encode(),
        json.dumps(GOOD | {"lease_seconds": "60"}).encode(),
        json.dumps(GOOD | {"lease_seconds": True}).encode(),
        json.dumps(GOOD | {"lease_seconds": float("nan")}).encode(),
        json.dumps(GOOD | {"lease_seconds": float("inf")}).encode(),
        json.dumps(GOOD | {"policy": "../x"}).encode(),
        json.dumps(GOOD | {"isolation": "strong"}).encode(),
        json.dumps(GOOD | {"listen": "udp"}).encode(),
        json.dumps(GOOD)[:-1].encode() + b', "tenant": "globex"}',
    ],
    ids=lambda raw: raw[:60].decode("latin-1"),
)
async def test_what_is_not_exactly_right_is_refused(control: Control, wrong: bytes) -> None:
    """Unknown and doubled keys, numbers in strings, values without a meaning."""
    assert await post(control, wrong) == (400, "malformed")


async def test_a_mistake_is_named_and_its_value_is_not(control: Control) -> None:
    """The value may be a secret in the wrong place."""
    body: dict[str, Any] = GOOD | {"lease_seconds": "sk-somebodys-key"}
    answer = await control.ask("POST", "/v1/sessions", caller="ci-launcher", body=body)
    assert "lease_seconds" in answer.json["error"]["message"]
    assert b"sk-somebodys-key" not in answer.body


async def test_a_large_body_is_not_read(control: Control) -> None:
    """With a length, and without."""
    large = json.dumps(GOOD | {"subject": "x" * reading.MAX_BODY}).encode()
    assert await post(control, large) == (413, "too_large")

    def chunked() -> bytes:
        with socket.create_connection(control.address, timeout=60) as raw:
            head = (
                "POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Authorization: Bearer {token_of('ci-launcher')}\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            raw.sendall(head.encode())
            try:
                for _ in range(20):
                    raw.sendall(b"2000\r\n" + b" " * 0x2000 + b"\r\n")
            except OSError:
                pass
            return raw.recv(20)

    assert (await asyncio.to_thread(chunked)).startswith(b"HTTP/1.1 413")


async def test_a_body_that_drips_is_given_up(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is needed for others."""
    monkeypatch.setattr(reading, "BODY_SECONDS", 0.2)

    def drip() -> bytes:
        with socket.create_connection(control.address, timeout=60) as raw:
            head = (
                "POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Authorization: Bearer {token_of('ci-launcher')}\r\nContent-Length: 100\r\n\r\n{{"
            )
            raw.sendall(head.encode())
            return raw.recv(20)

    assert (await asyncio.to_thread(drip)).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=x", "limit=1&limit=2", "limit=1001", "colour=red", "status=dead", "after=ses_1"],
)
async def test_a_query_is_read_as_strictly(control: Control, query: str) -> None:
    """A filter that is not understood would show too much."""
    answer = await control.ask("GET", f"/v1/sessions?{query}", caller="operator")
    assert (answer.status, answer.reason) == (400, "malformed")


async def test_a_get_has_no_body(control: Control) -> None:
    """Some intermediaries would drop it, and then two have read two requests."""
    answer = await control.ask("GET", "/v1/sessions", caller="operator", body={})
    assert (answer.status, answer.reason) == (400, "malformed")
