"""Streams that a guest opens, and the sockets that they come out of: a real channel, real Unix sockets."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coatcheck.launcher.channel import Channel
from coatcheck.launcher.egress import Egress, proxy_header
from coatcheck.launcher.mux import Data, Ended, Mux, Side, WasReset
from coatcheck.launcher.spec import Identity
from tests.launcher.scripted import identity

SECONDS = 20.0
RATE = 1024 * 1024


class Outside:
    """What listens at the sessions' sockets: it tells which one was reached, and returns what came."""

    def __init__(self) -> None:
        self.servers: list[asyncio.Server] = []

    async def listen(self, path: Path) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(path.name.encode() + b"|" + await reader.read())
            writer.close()

        self.servers.append(await asyncio.start_unix_server(serve, path))


class Inside:
    """The guest's end."""

    def __init__(self, sock: socket.socket) -> None:
        self.mux, self.sock = Mux(Side.GUEST), sock

    async def say(self, *frames: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, b"".join(frames))

    async def ask(self, kind: str, content: bytes = b"", **fields: str) -> bytes | str:
        """All that came back, or the reason of a RESET."""
        number, opened = self.mux.open(kind, fields.items())
        await self.say(opened, *([self.mux.data(number, content)] if content else []), self.mux.end(number))
        answer = b""
        async with asyncio.timeout(SECONDS):
            while data := await asyncio.get_running_loop().sock_recv(self.sock, 65536):
                for event in self.mux.receive(data):
                    match event:
                        case Data(stream, got) if stream == number:
                            answer += got
                            await self.say(self.mux.consumed(number, len(got) + 64))
                        case Ended(stream) if stream == number:
                            return answer
                        case WasReset(stream, reason, _) if stream == number:
                            return reason
        raise AssertionError("the channel ended")


async def metadata(connected: socket.socket, who: Identity) -> None:
    with connected:
        connected.sendall(f"metadata of {who.name}".encode())


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[Inside]:
    outside = Outside()
    who = (identity(tmp_path), identity(tmp_path, "tool", 1001))
    for each in who:
        for suffix in ("", ".t", ".d"):
            await outside.listen(Path(f"{each.socket}{suffix}"))
    host, guest = socket.socketpair()
    for each_end in (host, guest):
        each_end.setblocking(False)
    channel = Channel(host, Egress(who, metadata, RATE).accept, {"identities": "agent:1000"})
    running = asyncio.create_task(channel.run())
    made = Inside(guest)
    await made.say(made.mux.hello([("protocol", "2"), ("agent", "test")]))
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        guest.close()
        for server in outside.servers:
            server.close()


async def test_each_kind_leads_to_a_socket_of_the_identity_s_own_session(inside: Inside) -> None:
    """The host decides which; a guest says only who of those that the host named."""
    assert await inside.ask("proxy", b"GET /", identity="agent") == b"agent|GET /"
    assert await inside.ask("proxy", b"GET /", identity="tool") == b"tool|GET /"
    assert await inside.ask("dns", b"?", identity="tool") == b"tool.d|?"
    assert await inside.ask("metadata", identity="tool") == b"metadata of tool"


async def test_an_intercepted_connection_says_where_it_was_going(inside: Inside) -> None:
    """As a PROXY header before the client's own bytes: evidence, which nobody dials."""
    answer = await inside.ask("transparent", b"hello", identity="agent", destination="198.18.0.9", port="443")
    assert answer == b"agent.t|" + proxy_header("198.18.0.9", "443") + b"hello"


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("proxy", {"identity": "root"}, "unknown_identity"),
        ("proxy", {}, "unknown_identity"),
        ("exec", {"identity": "agent"}, "bad_request"),
        ("transparent", {"identity": "agent"}, "bad_request"),
        ("transparent", {"identity": "agent", "destination": "evil.example", "port": "443"}, "bad_request"),
        ("transparent", {"identity": "agent", "destination": "::1%eth0", "port": "443"}, "bad_request"),
        ("transparent", {"identity": "agent", "destination": "1.2.3.4", "port": "0"}, "bad_request"),
        ("transparent", {"identity": "agent", "destination": "1.2.3.4", "port": "٤٤٣"}, "bad_request"),
    ],
)
async def test_what_is_no_way_out_leads_nowhere(
    inside: Inside, kind: str, fields: dict[str, str], reason: str
) -> None:
    """An identity that was not named gets nobody's authority, and a name is no address."""
    assert await inside.ask(kind, b"", **fields) == reason


async def test_a_daemon_that_is_gone_is_a_refused_connection(inside: Inside, tmp_path: Path) -> None:
    """The program inside sees it at once, and may try again later."""
    (tmp_path / "agent").unlink()
    assert await inside.ask("proxy", b"GET /", identity="agent") == "refused"


async def test_all_connections_together_keep_to_the_rate(inside: Inside) -> None:
    """Both ways together, after a burst of a quarter of a second's bytes."""
    begun = time.monotonic()
    for _ in range(16):
        assert len(await inside.ask("proxy", bytes(30_000), identity="agent")) > 30_000
    assert time.monotonic() - begun > (16 * 60_000 - RATE / 4) / RATE * 0.9


@pytest.mark.parametrize(
    ("destination", "family", "length"), [("192.0.2.1", 0x11, 12), ("2001:db8::1", 0x21, 36)]
)
def test_the_header_is_that_of_the_proxy_protocol(destination: str, family: int, length: int) -> None:
    """Version 2, command PROXY, the destination last but for the ports; the source says nothing."""
    header = proxy_header(destination, "443")
    assert header[:12] == b"\r\n\r\n\x00\r\nQUIT\n" and header[12:14] == bytes([0x21, family])
    assert int.from_bytes(header[14:16]) == length == len(header) - 16
    assert header[-2:] == (443).to_bytes(2)


async def test_a_guest_that_is_gone_is_noticed_whatever_its_connections_wait_for(tmp_path: Path) -> None:
    """A proxy that reads no more, of an upstream that does not, must keep no dead sandbox's session alive."""
    who, stuck = identity(tmp_path), asyncio.Event()

    async def never_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        stuck.set()
        await asyncio.get_running_loop().create_future()

    server = await asyncio.start_unix_server(never_read, who.socket, limit=1)
    host, guest = socket.socketpair()
    for each_end in (host, guest):
        each_end.setblocking(False)
    channel = Channel(host, Egress((who,), metadata, 1 << 30).accept, {})
    running = asyncio.create_task(channel.run())
    mux, loop = Mux(Side.GUEST), asyncio.get_running_loop()
    number, opened = mux.open("proxy", [("identity", "agent")])
    await loop.sock_sendall(guest, mux.hello([("agent", "test")]) + opened)
    async with asyncio.timeout(SECONDS):
        await stuck.wait()
        silent = 0
        while silent < 20:  # all credit is used up, and no more comes
            silent += 1
            while piece := mux.may_send(number):
                await loop.sock_sendall(guest, mux.data(number, bytes(piece)))
            try:
                list(mux.receive(guest.recv(65536)))
                silent = 0
            except BlockingIOError:
                await asyncio.sleep(0.01)
        guest.close()
        await asyncio.shield(running)
    server.close()
