"""Clients that know of no proxy, as a launcher's mux brings them: through a sandbox's `.t` socket."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any

from coatcheck.decision.synthetic import synthetic
from coatcheck.state.sessions import NewSession
from tests.daemon import Sandbox, TestDaemon
from tests.planes.wire import Wire

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
ELSEWHERE = "203.0.113.7"
"""A literal address, which no name of ours has."""


def dialled(host: str, version: int = 4) -> str:
    """What DNS told the client that `host` is."""
    found = synthetic(host)
    assert found is not None
    return str(found.ipv4 if version == 4 else found.ipv6)


def proxy_header(address: str, port: int) -> bytes:
    """PROXY v2, from nowhere to `address:port`."""
    packed = ip_address(address).packed
    family = 0x11 if len(packed) == 4 else 0x21
    body = bytes(len(packed)) + packed + struct.pack("!HH", 0, port)
    return SIGNATURE + struct.pack("!BBH", 0x21, family, len(body)) + body


async def whole_sandbox(daemon: TestDaemon, **wanted: Any) -> Sandbox:
    """A session with the three sockets of `listen: "sandbox"`."""
    assert daemon.listeners is not None
    new = NewSession(**{"tenant": "acme", "subject": "agent", "policy": "default"} | wanted)
    session, minted = daemon.state.open_session(new, "test")
    path = await daemon.listeners.open_sandbox(session.id)
    handles = {handle.credential: handle.value for handle in minted}
    return Sandbox(session, handles, minted, f"unix://{path}", ("", 0), {})


def socket_of(sandbox: Sandbox, purpose: str) -> str:
    """The path of its `.t` or `.d`."""
    return sandbox.proxy.removeprefix("unix://") + purpose


@asynccontextmanager
async def connected(
    sandbox: Sandbox, address: str = ELSEWHERE, port: int = 443, *, header: bytes | None = None
) -> AsyncIterator[Wire]:
    """A connection that the client made to `address:port`."""
    reader, writer = await asyncio.open_unix_connection(socket_of(sandbox, ".t"))
    try:
        writer.write(proxy_header(address, port) if header is None else header)
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def secured(
    daemon: TestDaemon,
    sandbox: Sandbox,
    host: str = "api.openai.com",
    address: str = "",
    port: int = 443,
    *,
    alpn: tuple[str, ...] = (),
) -> AsyncIterator[Wire]:
    """The same with TLS for `host`; by default to the address that DNS told."""
    async with connected(sandbox, address or dialled(host), port) as raw:
        await raw.start_tls(daemon.trust.ca, host, alpn)
        yield raw


def negotiated(raw: Wire) -> ssl.SSLObject:
    found = raw.writer.get_extra_info("ssl_object")
    assert isinstance(found, ssl.SSLObject)
    return found
