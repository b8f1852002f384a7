"""The whole proxy over sockets: it goes on, it ends what it must, and nothing leaves without its verdict."""

import asyncio
import contextlib
import ssl
from collections import Counter

import h11
from hpack import Encoder
from hypothesis import event, example, given
from hypothesis import strategies as st

from tests.fuzz.budget import budget
from tests.fuzz.counting_origin import OK
from tests.fuzz.hostile_answers import Answer, answers
from tests.fuzz.http1_wire import cut, wires
from tests.fuzz.http2_wire import HEADERS, PREFACE, RIGHT, SETTINGS, connections, frame
from tests.planes.wire import Wire, http_client, tunnel, wire
from tests.system.fuzz.conftest import World

QUIET = 0.03
"""Seconds without another byte after which a client goes away. What the daemon does then decides nothing."""
CONNECT = b"CONNECT api.openai.com:443 HTTP/1.1\r\nHost: api.openai.com:443\r\n\r\n"
PATIENCE = 10
"""Such waits while a request is on its way: some wait for a body that never comes."""
_places = st.lists(st.integers(0, 2000), max_size=3)
_requests = wires().filter(bool)


def _aimed(wire: bytes, host: str, world: World) -> bytes:
    """The generated request at one of the world's hosts, with a handle where one is due."""
    handle = world.sandbox.handles["openai"].encode()
    return wire.replace(b"X-A: b\r\n", b"Authorization: Bearer " + handle + b"\r\n").replace(
        b"a.example", host.encode()
    )


async def _say(world: World, connection: Wire, pieces: list[bytes]) -> bytes:
    """Everything that comes back until nothing more does, and no request seems to be on its way."""
    heard = b""
    with contextlib.suppress(OSError, ssl.SSLError):
        for piece in pieces:
            await connection.send(piece)
            await asyncio.sleep(0)
        patience = PATIENCE
        while patience:
            try:
                async with asyncio.timeout(QUIET):
                    data = await connection.reader.read(65_536)
            except TimeoutError:
                patience = patience - 1 if world.daemon.exchange.calls else 0
                continue
            if not data:
                break
            heard += data
    return heard


async def _judge(world: World, heard: bytes) -> None:
    """What must be true once it is over, whatever was said."""
    await world.quiet()
    allowed: Counter[tuple[str, str]] = Counter()
    for record in world.decided():
        if record["outcome"] != "deny":
            host = str(record["destination"]).partition("//")[2].partition(":")[0]
            allowed[host, str(record["method"])] += 1
    event(f"{sum((world.origin.seen + world.plain.seen).values())} forwarded")
    for origin in (world.origin, world.plain):
        assert origin.unreadable == []
        assert origin.seen <= allowed, (origin.seen, allowed)
        origin.forget()
    assert world.secret.encode() not in heard
    async with http_client(world.daemon, world.sandbox) as client:
        alive = await client.get("https://upstream.example/alive")
        assert alive.text == "ok"
    await world.quiet()
    world.decided()
    world.origin.forget()


@given(_requests, _places, st.sampled_from(["api.openai.com", "upstream.example"]))
@example(b"GET /v1/models HTTP/1.1\r\nHost: a.example\r\nX-A: b\r\n\r\n", [], "api.openai.com")
@budget(25)
async def test_requests_in_a_tunnel(world: World, said: bytes, places: list[int], host: str) -> None:
    """HTTP/1 that is nearly right: the origin reads no more requests than there were verdicts."""
    async with tunnel(world.daemon, world.sandbox, host) as connection:
        heard = await _say(world, connection, cut(_aimed(said, host, world), places))
    await _judge(world, heard)


@given(_requests, _places)
@example(b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n", [])
@budget(20)
async def test_requests_without_a_tunnel(world: World, said: bytes, places: list[int]) -> None:
    """The same to the proxy itself, where absolute forms are for a host over plain HTTP."""
    async with wire(world.sandbox) as connection:
        absolute = said.replace(b" /", b" http://a.example/").replace(b"X-A: b\r\n", b"")
        heard = await _say(world, connection, cut(_aimed(absolute, "other.example", world), places))
    await _judge(world, heard)


@given(
    st.sampled_from([b"", b"CONNECT api.openai.com:443 HTTP/1.1\r\n\r\n", b"\x16\x03\x01"]),
    st.binary(max_size=300),
    _places,
)
@budget(15)
async def test_any_bytes(world: World, before: bytes, said: bytes, places: list[int]) -> None:
    """To the proxy, and where a ClientHello should come."""
    async with wire(world.sandbox) as connection:
        heard = await _say(world, connection, cut(before + said, places))
    await _judge(world, heard)


@given(connections(), _places)
@example(PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, 5, 1, Encoder().encode(RIGHT)), [])
@budget(20)
async def test_http2_frames(world: World, said: bytes, places: list[int]) -> None:
    """HTTP/2 that is nearly right, for an upstream that speaks HTTP/1."""
    async with wire(world.sandbox) as raw:
        await raw.send(b"CONNECT api.github.com:443 HTTP/1.1\r\nHost: api.github.com:443\r\n\r\n")
        assert await raw.status() == 200
        await raw.start_tls(world.daemon.trust.ca, "api.github.com", ("h2",))
        heard = await _say(world, raw, cut(said, places))
    await _judge(world, heard)


@given(answers, st.sampled_from(["GET", "POST", "HEAD"]))
@budget(25)
async def test_whatever_an_upstream_answers_no_secret_comes_back(
    world: World, answer: Answer, method: str
) -> None:
    """Echoes in every part of an answer, in odd framings, codings and lies about lengths."""
    sent = answer.wire(world.secret.encode())
    world.origin.answer = lambda request: OK if request.target == b"/alive" else sent
    handle = f"Authorization: Bearer {world.sandbox.handles['openai']}"
    request = f"{method} /v1/models HTTP/1.1\r\nHost: api.openai.com\r\n{handle}\r\nContent-Length: 0\r\n\r\n"
    async with tunnel(world.daemon, world.sandbox) as connection:
        heard = await _say(world, connection, [request.encode()])
    assert world.secret.encode() not in _content(heard, method)
    await _judge(world, heard)


def _content(heard: bytes, method: str) -> bytes:
    """All that a client makes of an answer: heads and bodies, without what frames them."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("host", "a"), ("content-length", "0")]))
    client.send(h11.EndOfMessage())
    client.receive_data(heard)
    out = b""
    with contextlib.suppress(h11.RemoteProtocolError):
        while (part := client.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(part, h11.Data):
                out += bytes(part.data)
            elif isinstance(part, h11.Response | h11.InformationalResponse):
                out += b"".join(name + value for name, value in part.headers) + part.reason
            elif isinstance(part, h11.EndOfMessage):
                break
    return out
