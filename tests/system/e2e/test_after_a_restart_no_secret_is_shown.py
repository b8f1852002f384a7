"""A restarted daemon knows nothing; before it answers, it reads from OpenBao what it must not show."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from coatcheck.secrets.embedded import EmbeddedVault
from tests.known_secrets import known_secret, remember_secret
from tests.system.e2e.daemon_process import DaemonProcess, OpenedSession, daemon_process
from tests.system.e2e.story import until
from tests.upstreams import UpstreamTls

POLICY = """
version: 1
owner: tests
credentials:
  openai:
    secret: vault:secret/restarted#api_key
    hosts: [api.openai.com]
    inject: {header: Authorization, value: "Bearer {secret}"}
rules:
  - {name: keyed, hosts: [api.openai.com], methods: [GET], paths: [/v1/**], credentials: [openai]}
  - {name: unread, hosts: [api.openai.com], methods: [GET], paths: [/unread], scrub: {off: public files}}
  - {name: pages, hosts: [api.openai.com], methods: [GET]}
"""


@dataclass
class Pages:
    """An upstream that shows everybody the same page."""

    port: int = 0
    body: bytes = b"{}"
    heads: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        length = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(self.body)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n" + length + self.body)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def pages(tls: UpstreamTls) -> AsyncIterator[Pages]:
    made = Pages()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls.certificate, tls.key)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=context)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


async def seen(session: OpenedSession, path: str, handle: bool = False) -> tuple[int, str, str]:
    """Status, reason and body of one GET."""
    wire = await session.connect()
    key = f"Authorization: Bearer {session.handle}\r\n" if handle else ""
    await wire.send(f"GET {path} HTTP/1.1\r\nHost: api.openai.com\r\nConnection: close\r\n{key}\r\n".encode())
    head = (await wire.reader.readuntil(b"\r\n\r\n")).decode().lower()
    body = (await wire.reader.read()).decode()
    wire.writer.transport.abort()
    why = next((line.partition(": ")[2] for line in head.splitlines() if "coatcheck-reason" in line), "")
    return int(head.split()[1]), why, body


@asynccontextmanager
async def with_vault(
    bao: EmbeddedVault, place: Path, private: Path, upstream_tls: UpstreamTls, port: int
) -> AsyncIterator[DaemonProcess]:
    """A daemon that reads its secrets there, anew each second."""
    remember_secret("the OpenBao token of a daemon that restarts", bao.root_token)
    token = private / "token"
    token.touch(0o600)
    token.write_text(bao.root_token)
    async with daemon_process(
        place,
        private / "secrets",
        POLICY,
        key="unused",
        upstream_tls=upstream_tls,
        port=port,
        vault_url=bao.url,
        vault_login="token",
        vault_token_file=str(token),
        vault_timeout="2",
        secret_ttl="1",
        session_lease="120",
    ) as daemon:
        yield daemon


async def test_a_value_from_before_a_rotation_stays_redacted_after_kill_9(
    place: Path, tmp_path: Path, upstream_tls: UpstreamTls
) -> None:
    """For sessions that live on and for new ones, with no request that uses the secret. While OpenBao is not
    there nothing is answered but what the policy says need not be read."""
    old, new = known_secret("served before the rotation"), known_secret("the rotated one")
    async with pages(upstream_tls) as upstream, EmbeddedVault.start(log=place / "openbao.log") as bao:
        await bao.put("restarted", {"api_key": old})
        async with with_vault(bao, place, tmp_path, upstream_tls, upstream.port) as daemon:
            before = await daemon.open_session("tcp")
            assert (await seen(before, "/v1/models", handle=True))[0] == 200
            assert old.encode() in upstream.heads[-1]
            await bao.put("restarted", {"api_key": new})
            await daemon.kill()
            upstream.body = f"{old} and {new}".encode()
            await daemon.start()
            after = await daemon.open_session("tcp")
            masked = f"{'*' * len(old)} and {'*' * len(new)}"
            for session in (before, after):
                assert await seen(session, "/page") == (200, "", masked)

            await daemon.kill()
            bao.process.kill()
            await bao.process.wait()
            await daemon.start()
            arrived = len(upstream.heads)
            for path, handle in (("/page", False), ("/v1/models", True)):
                status, why, body = await seen(before, path, handle)
                assert (status, why) == (503, "secret_unavailable") and old not in body
            assert len(upstream.heads) == arrived
            upstream.body = b"a public file"
            assert await seen(before, "/unread") == (200, "", "a public file")


async def test_a_new_value_is_redacted_before_anybody_used_it(
    place: Path, tmp_path: Path, upstream_tls: UpstreamTls
) -> None:
    """A session that never uses its credential sees no value of it that another host shows."""
    first, second = known_secret("never used"), known_secret("never used, rotated")
    async with pages(upstream_tls) as upstream, EmbeddedVault.start(log=place / "openbao.log") as bao:
        await bao.put("restarted", {"api_key": first})
        async with with_vault(bao, place, tmp_path, upstream_tls, upstream.port) as daemon:
            session = await daemon.open_session("tcp")
            upstream.body = first.encode()
            assert (await seen(session, "/page"))[2] == "*" * len(first)
            await bao.put("restarted", {"api_key": second})
            upstream.body = second.encode()

            async def body() -> str:
                return (await seen(session, "/page"))[2]

            await until(body, lambda text: text == "*" * len(second))
