import asyncio
import base64
import hashlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from urllib.parse import quote

import aiohttp
import httpx
import pytest
import zstandard

from demo.upstreams.server import TlsServer
from tests.known_secrets import known_secret


@pytest.fixture
async def client(url: Callable[[str], str], trust: ssl.SSLContext) -> AsyncIterator[httpx.AsyncClient]:
    bearer = {"Authorization": f"Bearer {known_secret('echoed')}"}
    async with httpx.AsyncClient(verify=trust, trust_env=False, base_url=url(""), headers=bearer) as ready:
        yield ready


@pytest.mark.parametrize("encoding", ["plain", "split", "gzip", "deflate", "br", "json"])
async def test_the_echo_holds_the_credential(client: httpx.AsyncClient, encoding: str) -> None:
    """Tests of the scrubber are worth something only if the echo is there without it."""
    answer = await client.post("/echo", params={"encoding": encoding}, content=b"and a body")
    assert f"authorization: Bearer {known_secret('echoed')}" in answer.text
    assert "and a body" in answer.text
    if encoding in ("gzip", "deflate", "br"):
        assert answer.headers["content-encoding"] == encoding
        assert known_secret("echoed").encode() not in await _raw(client, encoding)


async def _raw(client: httpx.AsyncClient, encoding: str) -> bytes:
    async with client.stream("POST", "/echo", params={"encoding": encoding}) as answer:
        return b"".join([chunk async for chunk in answer.aiter_raw()])


async def test_the_echo_compresses_with_zstd(client: httpx.AsyncClient) -> None:
    """By itself: httpx decodes zstd only with an extra."""
    # A frame made in one go says its size, so decompress() needs none.
    assert known_secret("echoed").encode() in zstandard.decompress(await _raw(client, "zstd"))


async def test_the_echo_encodes(client: httpx.AsyncClient) -> None:
    """Base64 and percent: the encodings in which a credential commonly travels."""
    answer = await client.get("/echo", params={"encoding": "base64"})
    assert known_secret("echoed") in base64.b64decode(answer.text).decode()
    answer = await client.get("/echo", params={"encoding": "percent"})
    assert quote(f"Bearer {known_secret('echoed')}", safe="") in answer.text


async def test_the_echo_goes_into_headers(client: httpx.AsyncClient) -> None:
    """A header, a cookie, a redirect: each is a way back into the sandbox."""
    secret = known_secret("echoed")
    assert (await client.get("/echo?in=header")).headers["x-echo"] == secret
    assert (await client.get("/echo?in=cookie")).headers["set-cookie"].startswith(f"echo={secret}")
    assert (await client.get("/echo?in=location")).headers["location"] == f"/echo?key={secret}"


async def test_the_echo_goes_into_a_trailer(origin_server: TlsServer, trust: ssl.SSLContext) -> None:
    """Read as bytes: few clients show trailers at all."""
    reader, writer = await asyncio.open_connection("localhost", origin_server.port, ssl=trust)
    credential = known_secret("echoed").encode()
    writer.write(
        b"GET /echo?in=trailer HTTP/1.1\r\nHost: localhost\r\nx-api-key: " + credential + b"\r\n\r\n"
    )
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert answer.endswith(b"\r\n0\r\nX-Echo: " + credential + b"\r\n\r\n")


async def test_two_ranges_together_give_the_secret(client: httpx.AsyncClient) -> None:
    """The attack that I1 forbids by dropping Range: neither half is an echo of the secret."""
    first = await client.get("/echo", headers={"Range": "bytes=0-40"})
    second = await client.get("/echo", headers={"Range": "bytes=41-4000"})
    assert (first.status_code, second.status_code, len(first.content)) == (206, 206, 41)
    whole = await client.get("/echo", headers={"X-Pad": "bytes=0-40"})
    assert whole.status_code == 200


async def test_events_are_not_held_back(client: httpx.AsyncClient) -> None:
    """The first event arrives before the last is sent: the last one's own time says so."""
    async with client.stream("GET", "/sse?n=3&gap_ms=100") as answer:
        lines = [(time.time(), line) async for line in answer.aiter_lines() if line.startswith("data: ")]
    assert len(lines) == 3
    assert lines[0][0] < json.loads(lines[2][1].removeprefix("data: "))["sent_at"]


async def test_slow_is_slow(client: httpx.AsyncClient) -> None:
    """A client that waits less than the origin gives up."""
    with pytest.raises(httpx.ReadTimeout):
        await client.get("/slow?seconds=5", timeout=0.2)


@pytest.mark.parametrize("framing", ["", "&chunked=1"])
async def test_big_is_as_big_as_asked(client: httpx.AsyncClient, framing: str) -> None:
    """With a length and without, to the byte."""
    answer = await client.get(f"/big?bytes=200001{framing}")
    assert len(answer.content) == 200_001
    assert ("content-length" in answer.headers) is (framing == "")


async def test_the_sink_counts_and_hashes(client: httpx.AsyncClient) -> None:
    """So that an upload through a proxy can be shown to have arrived whole."""
    body = b"x" * 300_000
    answer = await client.post("/sink", content=body)
    assert answer.json() == {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}


async def test_the_websocket_echoes_messages_and_headers(
    url: Callable[[str], str], trust: ssl.SSLContext
) -> None:
    """Text, bytes, and on request the headers, credential included."""
    async with aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {known_secret('echoed')}"}
        async with session.ws_connect(url("/ws"), ssl=trust, headers=headers) as socket:
            await socket.send_str("hello")
            assert await socket.receive_str(timeout=5) == "hello"
            await socket.send_bytes(b"\x00\x01")
            assert await socket.receive_bytes(timeout=5) == b"\x00\x01"
            await socket.send_str("headers")
            assert known_secret("echoed") in await socket.receive_str(timeout=5)
