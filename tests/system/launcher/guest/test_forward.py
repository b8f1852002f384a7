"""Where connections of the guest's programs go: all of them to the host, told apart by who made them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coatcheck.launcher import network
from coatcheck.launcher.channel import Channel, Chunk, Stream, StreamReset
from tests.launcher.guest.inhabited import (
    AS_ROOT,
    SECONDS,
    Inhabited,
    inhabited,
    read_all,
    read_until,
    refuse,
    started,
)

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
CURL = ("curl", "-s", "-S", "-m", "15", "--noproxy", "*")


@dataclass
class Host:
    """Answers whatever the guest opens, and remembers it."""

    opened: list[Stream] = field(default_factory=list)
    asked: list[bytes] = field(default_factory=list)

    async def accept(self, stream: Stream) -> None:
        self.opened.append(stream)
        item = await stream.read()
        assert isinstance(item, Chunk)
        self.asked.append(item.data)
        await stream.write(item.data if stream.kind == "dns" else ANSWER)
        await stream.end()
        while await stream.read() is not None:
            pass

    def last(self) -> tuple[str, ...]:
        stream = self.opened[-1]
        return (stream.kind, *map(stream.get, ("identity", "destination", "port")))


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
async def guest(agent_program: Path, host: Host) -> AsyncIterator[Inhabited]:
    async with inhabited(agent_program, host.accept) as guest:
        yield guest


@pytest.mark.parametrize(
    ("url", "opened"),
    [
        ("http://93.184.216.34/", ("transparent", "agent", "93.184.216.34", "80")),
        ("http://198.18.7.9:8443/", ("transparent", "agent", "198.18.7.9", "8443")),
        ("http://[2001:db8::7]:81/", ("transparent", "agent", "2001:db8::7", "81")),
        ("http://169.254.169.254/latest/", ("metadata", "agent", "", "")),
        ("http://169.254.170.2/v1", ("metadata", "agent", "", "")),
        ("http://169.254.169.254:8080/", ("transparent", "agent", "169.254.169.254", "8080")),
        ("http://127.0.0.1:3128/", ("proxy", "agent", "", "")),
    ],
)
async def test_every_connection_goes_to_the_host(
    guest: Inhabited, host: Host, url: str, opened: tuple[str, ...]
) -> None:
    """A program that knows of no proxy: whatever it dials, we see, with the address as evidence."""
    assert (await guest.run(*CURL, url)).out == b"hi"
    assert host.last() == opened


@pytest.mark.skipif(not AS_ROOT, reason="an ordinary user's namespace has one uid")
async def test_who_connects_is_what_the_kernel_says(guest: Inhabited, host: Host) -> None:
    """Each identity's connections carry its own name, on every way out."""
    for url in ("http://93.184.216.34/", "http://169.254.169.254/", "http://127.0.0.1:3128/"):
        for who in ("agent", "tool"):
            await guest.run(*CURL, url, identity=who)
            assert host.last()[1] == who
    await guest.run("python3", "-c", ASK.format(host="127.0.0.53"), identity="tool")
    assert host.last()[:2] == ("dns", "tool")


async def test_nobody_reaches_the_agents_own_ports(guest: Inhabited, host: Host) -> None:
    """Only the kernel's redirect leads there: dialled directly, another's name could be borrowed."""
    dial = (
        "import socket\nfor p in range(61000, 61032):\n"
        "  try: socket.create_connection(('{}', p), 5); print(p)\n  except ConnectionRefusedError: pass"
    )
    for address in ("127.0.0.1", "127.7.7.7", "::1"):
        done = await guest.run("python3", "-c", dial.format(address))
        assert (done.out, done.err) == (b"", b"")
    assert host.opened == []


ASK = """
import socket
s = socket.socket(socket.AF_INET6 if ':' in '{host}' else socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(10)
s.sendto(b'question-of-16by', ('{host}', 53))
print(s.recvfrom(99)[0].decode())
"""


@pytest.mark.parametrize("address", ["127.0.0.53", "8.8.8.8", "127.0.0.1", "2001:4860:4860::8888"])
async def test_names_are_asked_of_the_host(guest: Inhabited, host: Host, address: str) -> None:
    """Whichever server the program believes in, by UDP, with the length put in front."""
    done = await guest.run("python3", "-c", ASK.format(host=address))
    assert (done.out, done.err) == (b"question-of-16by\n", b"")
    assert host.last()[:2] == ("dns", "agent") and host.asked == [b"\x00\x10question-of-16by"]


async def test_names_are_asked_by_tcp_too(guest: Inhabited, host: Host) -> None:
    """The same stream, the client's own framing."""
    script = (
        "import socket\ns = socket.create_connection(('9.9.9.9', 53), 10)\n"
        "s.sendall(b'\\0\\3abc')\nprint(s.recv(9))"
    )
    assert (await guest.run("python3", "-c", script)).out == b"b'\\x00\\x03abc'\n"
    assert host.last()[0] == "dns"


async def test_everything_else_is_dropped_at_once(guest: Inhabited, host: Host) -> None:
    """UDP that is no name's question, and ICMP: an error, not a wait."""
    script = (
        "import socket\n"
        "for family, where in ((2, '8.8.8.8'), (10, '2001:db8::1')):\n"
        "  s = socket.socket(family, socket.SOCK_DGRAM)\n"
        "  try: s.sendto(b'x', (where, 443)); print('sent')\n"
        "  except PermissionError: print('refused')\n"
    )
    assert (await guest.run("python3", "-c", script)).out == b"refused\nrefused\n"
    assert host.opened == []


async def test_programs_in_the_guest_reach_each_other(guest: Inhabited, host: Host) -> None:
    """Loopback is theirs."""
    script = (
        "import socket\nl = socket.create_server(('127.0.0.1', 8000))\n"
        "c = socket.create_connection(('127.0.0.1', 8000)); print(l.accept()[1][0])\n"
        "a = socket.socket(2, 2); a.bind(('127.0.0.1', 8001)); c = socket.socket(2, 2)\n"
        "c.sendto(b'udp', ('127.0.0.1', 8001)); print(a.recv(9))"
    )
    assert (await guest.run("python3", "-c", script)).out == b"127.0.0.1\nb'udp'\n"
    assert host.opened == []


async def test_half_closed_connections_stay_half_open(agent_program: Path) -> None:
    """A client that has said all it has to say still gets its answer."""

    async def count(stream: Stream) -> None:
        size = 0
        while isinstance(item := await stream.read(), Chunk):
            size += len(item.data)
        await stream.write(str(size).encode())
        await stream.end()

    script = (
        "import socket\ns = socket.create_connection(('1.2.3.4', 80), 20)\n"
        "s.sendall(b'x' * 3_000_000); s.shutdown(1)\nprint(s.recv(99))"
    )
    async with inhabited(agent_program, count) as guest:
        assert (await guest.run("python3", "-c", script)).out == b"b'3000000'\n"


async def test_what_the_host_drops_is_reset_in_the_guest(agent_program: Path) -> None:
    """An upstream that breaks off must not look like a clean end."""

    async def drop(stream: Stream) -> None:
        await stream.read()
        await stream.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf")
        stream.reset("failed")

    async with inhabited(agent_program, drop) as guest:
        done = await guest.run(*CURL, "http://1.2.3.4/")
        assert done.get("exit") in {"18", "56"}


async def test_more_connections_than_allowed_wait_their_turn(agent_program: Path) -> None:
    """512 at a time; the others are accepted as soon as there is room, and nothing breaks."""
    served = 0

    async def answer(stream: Stream) -> None:
        nonlocal served
        served += 1
        await stream.read()
        await stream.write(b"y")
        await stream.end()

    script = (
        "import socket\nall = [socket.create_connection(('1.2.3.4', 80), 20) for n in range(700)]\n"
        "for s in all: s.sendall(b'x'); s.shutdown(1)\n"
        "print(sum(len(s.recv(9)) for s in all))"
    )
    async with inhabited(agent_program, answer) as guest:
        done = await guest.run("/bin/sh", "-c", 'ulimit -n 2048; exec python3 -c "$0"', script)
    assert (done.out, done.err, served) == (b"700\n", b"", 700)


@pytest.mark.skipif(not AS_ROOT, reason="an ordinary user's namespace has one uid")
async def test_one_identity_takes_no_connection_of_another(agent_program: Path) -> None:
    """The tool's flood does not silence the harness."""
    script = (
        "import socket, time\nall = [socket.create_connection(('1.2.3.4', 80), 20) for n in range(600)]\n"
        "for s in all[:250]: s.sendall(b'x')\nprint('up', flush=True); time.sleep(60)"
    )

    async def hold(stream: Stream) -> None:
        if stream.get("identity") == "tool":
            await asyncio.sleep(SECONDS)
        await stream.read()
        await stream.write(ANSWER)
        await stream.end()

    async with inhabited(agent_program, hold) as guest:
        flood = ("/bin/sh", "-c", 'ulimit -n 2048; exec python3 -c "$0"', script)
        async with await guest.open(*flood, identity="tool") as stream:
            await read_until(stream, b"up\n")
            assert (await guest.run(*CURL, "http://1.2.3.4/")).out == b"hi"


async def test_a_flood_of_questions_drops_the_oldest(agent_program: Path) -> None:
    """A host that answers nobody costs 64 streams, not more."""
    open_ones: set[int] = set()

    async def ignore(stream: Stream) -> None:
        open_ones.add(stream.number)
        try:
            while await stream.read() is not None:
                pass
            await asyncio.sleep(SECONDS)
        finally:
            open_ones.discard(stream.number)

    script = (
        "import socket, time\ns = socket.socket(2, 2)\n"
        "for n in range(500): s.sendto(b'question-of-16by', ('8.8.8.8', 53)); time.sleep(0.0005)\n"
    )
    async with inhabited(agent_program, ignore) as guest:
        assert (await guest.run("python3", "-c", script)).get("exit") == "0"
        await asyncio.sleep(0.2)
        assert 0 < len(open_ones) <= 64


async def test_a_kernel_without_nftables_gets_the_services_where_programs_expect_them(
    agent_program: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One identity; several could not be told apart, and nothing runs."""
    monkeypatch.setattr(network, "rules", lambda _: NO_MESSAGE)
    async with inhabited(agent_program, host.accept, "agent:1000") as guest:
        assert not guest.redirected
        assert (await guest.run(*CURL, "http://127.0.0.1:3128/")).out == b"hi"
        assert host.last() == ("proxy", "agent", "", "")
        assert (await guest.run(*CURL, "http://169.254.170.2/")).out == b"hi"
        assert host.last() == ("metadata", "agent", "", "")
        done = await guest.run("python3", "-c", ASK.format(host="127.0.0.53"))
        assert (done.out, host.last()[:2]) == (b"question-of-16by\n", ("dns", "agent"))
        assert (await guest.run(*CURL, "http://93.184.216.34/")).get("exit") == "7"
        async with await guest.channel.open("connect", [("port", "3128")]) as stream:
            with pytest.raises(StreamReset, match="bad_request"):
                await read_all(stream)
    if AS_ROOT:
        with pytest.raises(StreamReset, match="network_open"):
            async with inhabited(agent_program, host.accept):
                raise AssertionError("it came up")


NO_MESSAGE = bytes(15)
"""No netlink message at all."""


async def test_nothing_runs_before_the_network_is_closed(agent_program: Path) -> None:
    """A host that forgets it gets no command, file or connection."""
    async with started(agent_program) as (ours, _):
        channel = Channel(ours, refuse, {"generation": "1", "hostname": "open", "identities": "agent:1000"})
        running = asyncio.create_task(channel.run())
        await channel.ready(SECONDS)
        for kind, field in (("exec", ("arg", "true")), ("read", ("path", "/x")), ("connect", ("port", "9"))):
            async with await channel.open(kind, [field]) as stream:
                with pytest.raises(StreamReset, match="network_open"):
                    await read_all(stream)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


# ----------------------------------------------------------------------------------------- ingress

SERVE = """
import socket
l = socket.create_server(('{host}', 8000), family=socket.AF_INET6 if ':' in '{host}' else socket.AF_INET)
print('up', flush=True)
c = l.accept()[0]
data = b''
while piece := c.recv(65536): data += piece
c.sendall(b'%d' % len(data))
"""


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1"])
async def test_a_server_in_the_guest_can_be_reached(guest: Inhabited, address: str) -> None:
    """On either loopback; both directions end by themselves."""
    async with await guest.open("python3", "-c", SERVE.format(host=address)) as server:
        await read_until(server, b"up\n")
        async with await guest.channel.open("connect", [("port", "8000")]) as stream:
            await stream.write(b"x" * 1_000_000)
            await stream.end()
            assert (await read_all(stream)).out == b"1000000"


async def test_ports_without_a_server_and_the_agents_own_are_refused(guest: Inhabited) -> None:
    """Through the agent's own ports the host would come back to itself, in an identity's name."""
    for port, reason in (
        ("8000", "refused"),
        ("61001", "bad_request"),
        ("0", "bad_request"),
        ("x", "bad_request"),
    ):
        async with await guest.channel.open("connect", [("port", port)]) as stream:
            with contextlib.suppress(StreamReset):
                await stream.write(b"before it is refused")
            with pytest.raises(StreamReset) as told:
                await read_all(stream)
        assert told.value.reason == reason, port
