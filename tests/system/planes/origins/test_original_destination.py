"""Where a redirected connection was going: the kernel in a real namespace, a PROXY header byte by byte."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.message import OriginalDestination
from coatcheck.planes.listeners import listener
from coatcheck.planes.origins import original_destination
from coatcheck.planes.origins.original_destination import NotRedirected, from_kernel, from_proxy_header
from tests.daemon import TestDaemon
from tests.planes.attack import nothing_is_left
from tests.planes.redirected import SIGNATURE, connected, dialled, proxy_header, whole_sandbox

ROOT = Path(__file__).parents[4]


# --- the kernel's word -------------------------------------------------------------------------------


@pytest.mark.needs_debian("ip", "nft")
def test_the_kernel_says_where_a_redirected_connection_was_going(tmp_path: Path) -> None:
    """In a namespace with a real redirect, IPv4 and IPv6: DNS through it, the request through it, and the
    refusals of who lies or comes directly."""
    own = ["--net"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--net"]
    inside = [sys.executable, "-m", "tests.planes.in_namespace", str(tmp_path)]
    done = subprocess.run(
        ["unshare", *own, *inside], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    saw = json.loads(done.stdout)
    assert saw == {
        "resolved": [[dialled("upstream.example")]],
        "ipv4": "HTTP/1.1 200 OK",
        "ipv6": "HTTP/1.1 200 OK",
        "another name's": "HTTP/1.1 421 Misdirected Request",
        "another port": "HTTP/1.1 403 Forbidden",
        "directly": ["own_surface", "own_surface"],
        "originals": [
            f"{dialled('upstream.example')}:443",
            f"[{dialled('upstream.example', 6)}]:443",
            f"{dialled('other.example')}:443",
            f"{dialled('upstream.example')}:8443",
            "",
            "",
        ],
        "origins": ["address"] * 6,
    }


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_without_a_redirect_there_is_no_original_destination(family: int, host: str) -> None:
    """Whether the kernel knows nothing or names the listener."""
    with socket.socket(family) as listening, socket.socket(family) as client:
        listening.bind((host, 0))
        listening.listen()
        client.connect(listening.getsockname()[:2])
        accepted, _ = listening.accept()
        with accepted, pytest.raises(NotRedirected):
            from_kernel(accepted)


def test_another_socket_knows_nothing_of_redirects() -> None:
    """A Unix socket in the place of a TCP one is refused, not believed."""
    left, right = socket.socketpair()
    with left, right, pytest.raises(NotRedirected):
        from_kernel(left)


# --- the mux's word ----------------------------------------------------------------------------------


async def read(data: bytes) -> tuple[OriginalDestination, bytes]:
    """What a stream of exactly `data` says, and what is left of it."""
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    original = await from_proxy_header(reader)
    return original, await reader.read()


ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)


@given(ADDRESSES, st.integers(1, 65_535), st.binary(max_size=40))
def test_a_header_says_exactly_where(address: str, port: int, after: bytes) -> None:
    """And takes no byte of what the client says."""
    original, rest = asyncio.run(read(proxy_header(address, port) + after))
    ip = ip_address(address)
    mapped = getattr(ip, "ipv4_mapped", None)
    assert original == OriginalDestination(str(mapped or ip), port)
    assert rest == after


@given(ADDRESSES, st.integers(1, 65_535), st.data())
def test_a_header_that_is_cut_or_changed_is_refused(address: str, port: int, data: st.DataObject) -> None:
    """Wherever it is cut; and any other byte in its first sixteen, which leave no choice."""
    header = proxy_header(address, port)
    with pytest.raises(NotRedirected):
        asyncio.run(read(header[: data.draw(st.integers(0, len(header) - 1))]))
    at, byte = data.draw(st.integers(0, 15)), data.draw(st.integers(0, 255))
    changed = header[:at] + bytes((byte,)) + header[at + 1 :]
    if changed != header:
        with pytest.raises(NotRedirected):
            asyncio.run(read(changed + bytes(40)))


@given(st.binary(max_size=80))
def test_anything_else_is_no_header(data: bytes) -> None:
    """Behind the right signature, too."""
    for said in (data, SIGNATURE + data):
        try:
            original, _ = asyncio.run(read(said))
        except NotRedirected:
            continue
        assert proxy_header(original.address, original.port)[12:16] == said[12:16]


LIES = {
    "nothing": b"",
    "no header": b"GET / HTTP/1.1\r\nHost: upstream.example\r\n\r\n",
    "version 1": b"PROXY TCP4 10.0.0.1 203.0.113.7 1 443\r\n" + bytes(20),
    "LOCAL": SIGNATURE + b"\x20\0\0\0",
    "UDP": SIGNATURE + b"\x21\x12\0\x0c" + bytes(12),
    "a path": SIGNATURE + b"\x21\x31\0\xd8" + bytes(216),
    "unspecified": SIGNATURE + b"\x21\0\0\0",
    "TCP4 with options": SIGNATURE + b"\x21\x11\0\x10" + bytes(10) + b"\1\xbb" + b"\4\0\1\0",
    "endless": SIGNATURE + b"\x21\x11\xff\xff" + bytes(1000),
    "no port": SIGNATURE + b"\x21\x11\0\x0c" + bytes(12),
    "cut off": proxy_header("203.0.113.7", 443)[:-1],
}


async def test_a_session_socket_takes_no_connection_without_one(
    daemon: TestDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused and recorded in time, with nothing asked of the plane."""
    monkeypatch.setattr(original_destination, "HEADER_SECONDS", 0.2)
    sandbox = await whole_sandbox(daemon)
    for lie, said in LIES.items():
        async with connected(sandbox, header=said) as raw:
            assert await raw.refused_because() == "own_surface", lie
    decisions = daemon.decisions()
    assert [(each["session"], each["original"]) for each in decisions] == [(sandbox.session.id, "")] * len(
        LIES
    )
    await nothing_is_left(daemon)


async def test_who_waits_with_its_header_holds_a_place_of_its_own_session(
    daemon: TestDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sandbox's silence takes nobody else's place, and ends."""
    monkeypatch.setattr(original_destination, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(listener, "MAX_PER_SESSION", 1)
    mine, theirs = await whole_sandbox(daemon), await whole_sandbox(daemon)
    async with connected(mine, header=b"") as silent:
        async with connected(mine) as second:
            assert await second.refused_because() == "capacity"
        async with connected(theirs) as other:
            await other.send(b"\0")
            assert await other.refused_because() == "protocol_refused"
        assert await silent.refused_because() == "own_surface"
