"""The resolver over UDP, TCP and a session's socket: synthetic addresses within bounds."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from mitmproxy.dns import DNSMessage

from coatcheck.planes.dns import resolver as dns
from coatcheck.planes.dns.message import MAX_QUERY, Type
from coatcheck.planes.dns.resolver import Resolver
from coatcheck.telemetry.metrics.metrics import DNS_TYPES, DnsOutcome
from tests.daemon import TestDaemon, running_daemon
from tests.planes.attack import eventually
from tests.planes.dns.test_message import query
from tests.planes.redirected import dialled, socket_of, whole_sandbox
from tests.upstreams import UpstreamTls

POLICY = """
version: 1
owner: tests
rules:
  - name: free
    hosts: [upstream.example]
    methods: [GET]
"""


@pytest.fixture
async def daemon(tmp_path: Path, all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[TestDaemon]:
    """Its name servers and what it dials would be noticed: there are none."""
    async with running_daemon(
        all_output / tmp_path.name,
        POLICY,
        upstream_ca=upstream_tls.ca,
        connect_to={},
        dns_port=0,
        transparent_hosts=("127.0.0.1", "::1"),
    ) as running:
        yield running


def counted(daemon: TestDaemon, kind: str, outcome: str) -> float:
    line = f'coatcheck_dns_questions_total{{outcome="{outcome}",type="{kind}"}} '
    found = [text for text in daemon.metrics.render().decode().splitlines() if text.startswith(line)]
    return float(found[0].removeprefix(line)) if found else 0.0


def addresses(response: bytes) -> list[str]:
    records = DNSMessage.unpack(response).answers
    return [str(r.ipv4_address if r.type == Type.A else r.ipv6_address) for r in records]


class Asking(asyncio.DatagramProtocol):
    """A stub resolver."""

    def __init__(self) -> None:
        self.got: asyncio.Queue[bytes] = asyncio.Queue()

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.got.put_nowait(data)


async def over_udp(to: tuple[str, int], *queries: bytes, wait: float = 5.0) -> list[bytes]:
    """What comes back, until nothing has for `wait` seconds or each query has its answer."""
    loop = asyncio.get_running_loop()
    transport, stub = await loop.create_datagram_endpoint(Asking, remote_addr=to)
    got: list[bytes] = []
    try:
        for data in queries:
            transport.sendto(data)
        async with asyncio.timeout(wait):
            while len(got) < len(queries):
                got.append(await stub.got.get())
    except TimeoutError:
        pass
    finally:
        transport.close()
    return got


async def over_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    """Empty when the connection ends instead."""
    writer.write(len(data).to_bytes(2) + data)
    try:
        async with asyncio.timeout(5):
            return await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


async def test_udp_and_tcp_answer_alike_over_both_families(daemon: TestDaemon) -> None:
    """At one port; any number of questions on a connection."""
    assert len({port for _, port in daemon.addresses.dns}) == 1
    for to in daemon.addresses.dns:
        for kind, version in ((Type.A, 4), (Type.AAAA, 6)):
            expected = [dialled("api.openai.com", version)]
            (datagram,) = await over_udp(to, query(kind=kind))
            assert addresses(datagram) == expected
            reader, writer = await asyncio.open_connection(*to)
            for _ in range(3):
                assert await over_stream(reader, writer, query(kind=kind)) == datagram
            writer.close()
    assert counted(daemon, "A", "answered") == counted(daemon, "AAAA", "answered") == 8


async def test_what_gets_no_answer_is_counted(daemon: TestDaemon) -> None:
    """By closed labels: a type in letters or `other`, and what became of it; never the name."""
    to = daemon.addresses.dns[0]
    bad = (b"garbage", query(flags=0x8100), query(rest=bytes(MAX_QUERY)))
    assert await over_udp(to, *bad, wait=0.2) == []
    txt, odd = await over_udp(to, query("secret.attacker.example", Type.TXT), query(kind=4242))
    assert addresses(txt) == addresses(odd) == []
    assert counted(daemon, "", "malformed") == 2
    assert counted(daemon, "", "oversized") == 1
    assert counted(daemon, "TXT", "no_data") == counted(daemon, "other", "no_data") == 1
    assert b"attacker" not in daemon.metrics.render()
    assert {kind.name for kind in Type} | {"other", ""} == DNS_TYPES


async def test_a_whole_sandbox_has_a_resolver_of_its_own(daemon: TestDaemon) -> None:
    """Its questions go to `.d`, and its connections end with the session."""
    sandbox = await whole_sandbox(daemon)
    reader, writer = await asyncio.open_unix_connection(socket_of(sandbox, ".d"))
    assert addresses(await over_stream(reader, writer, query())) == [dialled("api.openai.com")]
    assert addresses(await over_stream(reader, writer, query(kind=Type.HTTPS))) == []
    await asyncio.to_thread(daemon.state.revoke, sandbox.session.id, "test")
    async with asyncio.timeout(5):
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
    assert not Path(socket_of(sandbox, ".d")).exists()
    writer.close()


@pytest.mark.parametrize("data", [b"\xff\xff", b"\0\4\0\0\0\0", b"\0\0", b"\0"])
async def test_a_stream_that_does_not_ask_is_closed(
    daemon: TestDaemon, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    """Too long, malformed, empty, or silent in the middle."""
    monkeypatch.setattr(dns, "IDLE_SECONDS", 0.2)
    sandbox = await whole_sandbox(daemon)
    reader, writer = await asyncio.open_unix_connection(socket_of(sandbox, ".d"))
    writer.write(data)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()


@pytest.fixture
def three_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before there is a resolver."""
    monkeypatch.setattr(dns, "RATE", replace(dns.RATE, count=1, period=60.0, burst=3))


async def test_one_source_may_ask_so_much_and_no_more(three_a_minute: None, daemon: TestDaemon) -> None:
    """Datagrams beyond the rate are dropped and counted; others are answered all the while."""
    four, six = daemon.addresses.dns
    assert len(await over_udp(four, *[query()] * 6, wait=0.3)) == 3
    assert counted(daemon, "", "limited") == 3
    assert len(await over_udp(six, query())) == 1


async def test_a_stream_waits_where_a_datagram_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost, and the sender is held back."""
    monkeypatch.setattr(dns, "RATE", replace(dns.RATE, count=20, period=1.0, burst=1))
    told: list[DnsOutcome] = []
    resolver = Resolver(lambda outcome, _: told.append(outcome))
    reader, writer = asyncio.StreamReader(), _Collected()
    for _ in range(4):
        reader.feed_data(len(query()).to_bytes(2) + query())
    reader.feed_eof()
    began = asyncio.get_running_loop().time()
    await resolver.serve(reader, writer, "a")  # type: ignore[arg-type]
    assert asyncio.get_running_loop().time() - began >= 0.14
    assert told == [DnsOutcome.ANSWERED] * 4


class _Collected:
    """As much of a StreamWriter as is written to."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None: ...

    def close(self) -> None: ...


async def test_connections_of_one_source_are_limited(
    daemon: TestDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one too many is closed at once; a place is free again when one ends."""
    monkeypatch.setattr(dns, "MAX_STREAMS", 2)
    sandbox = await whole_sandbox(daemon)
    path = socket_of(sandbox, ".d")
    opened = [await asyncio.open_unix_connection(path) for _ in range(2)]
    for reader, writer in opened:
        assert await over_stream(reader, writer, query())
    reader, writer = await asyncio.open_unix_connection(path)
    assert await over_stream(reader, writer, query()) == b""
    writer.close()
    opened.pop()[1].close()

    async def served() -> bool:
        reader, writer = await asyncio.open_unix_connection(path)
        said = await over_stream(reader, writer, query())
        writer.close()
        return bool(said)

    async with asyncio.timeout(5):
        while not await served():
            await asyncio.sleep(0.02)
    opened.pop()[1].close()


def test_sources_that_are_remembered_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spoofed ones cost no memory."""
    monkeypatch.setattr(dns, "SOURCES", 10)
    resolver = Resolver(lambda outcome, kind: None)
    for number in range(50):
        assert resolver.wait(f"192.0.2.{number}") == 0
    assert len(resolver.rates) == 10


async def test_the_port_answers_no_more_after_a_drain(daemon: TestDaemon) -> None:
    """Neither family, neither protocol."""
    assert daemon.listeners is not None
    daemon.listeners.stop_accepting()
    await asyncio.sleep(0)
    to = daemon.addresses.dns[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        await eventually(lambda: _bound(free, to))
    with pytest.raises(ConnectionError):
        await asyncio.open_connection(*to)


def _bound(sock: socket.socket, to: tuple[str, int]) -> bool:
    try:
        sock.bind(to)
    except OSError:
        return False
    return True
