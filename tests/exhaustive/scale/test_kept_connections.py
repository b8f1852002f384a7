"""What one connection of a sandbox may keep open on the other side."""

import asyncio
from pathlib import Path

from coatcheck.planes.mitm.layers import MAX_KEPT
from tests.daemon import running_daemon
from tests.system.e2e.story import until
from tests.upstreams import UpstreamTls

HOSTS = 40
POLICY = """
version: 1
owner: tests
rules:
  - name: any of them
    hosts: ["*.upstream.example.org"]
    methods: [GET]
    plain_http: true
"""


async def test_a_wildcard_gives_no_sandbox_as_many_upstream_connections_as_it_has_names(
    tmp_path: Path, upstream_tls: UpstreamTls
) -> None:
    """Request after request to another host on one connection: each is answered, and few stay open. The one
    that is asked again is still there."""
    taken: list[asyncio.StreamWriter] = []
    open_now: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)
        open_now.add(writer)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            open_now.discard(writer)
            writer.transport.abort()

    async def how_many() -> int:
        return len(open_now)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    names = [f"h{number}.upstream.example.org" for number in range(HOSTS)]
    async with running_daemon(
        tmp_path, POLICY, upstream_ca=upstream_tls.ca, connect_to={f"{name}:80": port for name in names}
    ) as daemon:
        sandbox = await daemon.sandbox()
        reader, writer = await asyncio.open_connection(*sandbox.address)
        for name in [*names, names[-1]]:
            writer.write(f"GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(2) == b"ok"
        assert len(taken) == HOSTS
        await until(how_many, lambda count: 0 < count <= MAX_KEPT)
        writer.transport.abort()
        await until(how_many, lambda count: count == 0)
    server.close()
