"""What a shared listener takes as proof of who is talking, with real clients of each origin class."""

import asyncio
import hashlib
import re
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from coatcheck.decision.message import Origin, OriginClass
from coatcheck.decision.ratelimit import Rate
from coatcheck.decision.session import Session
from coatcheck.planes.listeners import listener
from coatcheck.state.sessions import NewSession
from demo.upstreams.server import TlsServer
from tests.daemon import TestDaemon, running_daemon
from tests.planes.platform import AUDIENCE, ISSUER, Platform
from tests.upstreams import UpstreamTls

POLICY = """
version: 1
owner: tests
credentials:
  openai:
    secret: memory:secret/openai#api_key
    hosts: [api.openai.com]
    inject: {header: Authorization, value: "Bearer {secret}"}
    env: OPENAI_API_KEY
  anthropic:
    secret: memory:secret/anthropic#api_key
    hosts: [api.anthropic.com]
    inject: {header: X-Api-Key}
    env: ANTHROPIC_API_KEY
    origins: [socket, mtls]
rules:
  - name: openai
    hosts: [api.openai.com]
    methods: [GET]
    credentials: [openai]
  - name: anthropic
    hosts: [api.anthropic.com]
    methods: [GET]
    credentials: [anthropic]
  - name: plain
    hosts: [upstream.example]
    methods: [GET]
    plain_http: true
    ports: [80, 443]
"""
URL = {"openai": "https://api.openai.com/v1/models", "anthropic": "https://api.anthropic.com/v1/models"}


@dataclass(frozen=True, slots=True)
class Shared:
    """A daemon with a shared listener, and how to speak to it."""

    daemon: TestDaemon
    url: str
    trust: ssl.SSLContext
    sandboxes: trustme.CA
    """Signs sandboxes' client certificates."""
    platform: Platform

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def session(self, kind: OriginClass, value: str) -> tuple[Session, dict[str, str]]:
        session, minted = self.daemon.state.open_session(
            NewSession(tenant="acme", subject=value, policy="default", origin=Origin(kind, value)), "test"
        )
        return session, {handle.credential: handle.value for handle in minted}

    def client(self, certificate: trustme.LeafCert | None = None, **headers: str) -> httpx.AsyncClient:
        """With a client certificate towards the proxy, or with headers for it."""
        context = None
        if self.url.startswith("https"):
            context = ssl.create_default_context()
            self.sandboxes.configure_trust(context)
            if certificate is not None:
                certificate.configure_cert(context)
        shown = {name.replace("_", "-"): value for name, value in headers.items()}
        proxy = httpx.Proxy(self.url, ssl_context=context, headers=shown)
        return httpx.AsyncClient(proxy=proxy, verify=self.trust, timeout=10)

    async def ask(self, client: httpx.AsyncClient, handles: dict[str, str], name: str = "openai") -> str:
        """`ok`, or the reason of the refusal."""
        header = {"Authorization": f"Bearer {handles[name]}"}
        if name == "anthropic":
            header = {"X-Api-Key": handles[name]}
        try:
            answer = await client.get(URL[name], headers=header)
        except httpx.ProxyError as error:
            return "origin_unknown" if "407" in str(error) else str(error)
        return str(answer.headers.get("coatcheck-reason", "ok"))


@pytest.fixture(params=[{}])
async def shared(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    all_output: Path,
    origin_server: TlsServer,
    upstream_tls: UpstreamTls,
    real_keys: dict[str, str],
) -> AsyncIterator[Shared]:
    wanted: dict[str, Any] = request.param
    sandboxes = trustme.CA()
    platform = Platform(tmp_path / "jwks.json")
    settings: dict[str, Any] = {"proxy_port": 0, "proxy_trust_addresses": wanted.get("addresses", False)}
    if wanted.get("tls"):
        server = sandboxes.issue_cert("127.0.0.1")
        server.private_key_and_cert_chain_pem.write_to_path(tmp_path / "proxy.pem")
        sandboxes.cert_pem.write_to_path(tmp_path / "sandboxes.pem")
        settings |= {
            "proxy_tls_certificate": tmp_path / "proxy.pem",
            "proxy_client_ca": tmp_path / "sandboxes.pem",
        }
    if wanted.get("tokens"):
        settings |= {
            "token_jwks_file": platform.file,
            "token_issuer": ISSUER,
            "token_audience": AUDIENCE,
        }
    plain = await asyncio.start_server(seen_plain, "127.0.0.1", 0)
    async with running_daemon(
        all_output / tmp_path.name,
        POLICY,
        {f"memory:secret/{name}#api_key": key for name, key in real_keys.items()},
        upstream_ca=upstream_tls.ca,
        connect_to={f"{host}:443": origin_server.port for host in ("api.openai.com", "api.anthropic.com")}
        | {"upstream.example:80": plain.sockets[0].getsockname()[1]},
        **settings,
    ) as daemon:
        scheme = "https" if wanted.get("tls") else "http"
        assert daemon.proxy_address is not None
        url = f"{scheme}://127.0.0.1:{daemon.proxy_address[1]}"
        trust = ssl.create_default_context(cafile=str(daemon.trust.ca))
        yield Shared(daemon, url, trust, sandboxes, platform)
    plain.close()


async def seen_plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A plain HTTP origin that answers with the head that it saw."""
    head = await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))
    writer.close()


def fingerprint(certificate: trustme.LeafCert) -> str:
    der = x509.load_pem_x509_certificate(certificate.cert_chain_pems[0].bytes()).public_bytes(Encoding.DER)
    return hashlib.sha256(der).hexdigest()


# --- mtls ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [{"tls": True}], indirect=True)
async def test_a_client_certificate_proves_its_session_and_no_other(
    shared: Shared, origin_server: TlsServer
) -> None:
    """The right certificate works, with every credential; another sandbox's, showing the handle, is theft."""
    mine, theirs = (shared.sandboxes.issue_cert(f"{name}.sandbox.example") for name in ("a", "b"))
    _, handles = shared.session(OriginClass.MTLS, fingerprint(mine))
    shared.session(OriginClass.MTLS, fingerprint(theirs))
    async with shared.client(mine) as client:
        assert await shared.ask(client, handles) == "ok"
        assert await shared.ask(client, handles, "anthropic") == "ok"
    assert [seen.genuine for seen in origin_server.seen] == ["openai", "anthropic"]
    async with shared.client(theirs) as thief:
        assert await shared.ask(thief, handles) == "handle_stolen"
    async with shared.client(shared.sandboxes.issue_cert("c.sandbox.example")) as stranger:
        assert await shared.ask(stranger, handles) == "origin_unknown"
    assert len(origin_server.seen) == 2


@pytest.mark.parametrize("shared", [{"tls": True}], indirect=True)
async def test_without_a_certificate_of_the_sandboxes_ca_there_is_no_conversation(shared: Shared) -> None:
    """No certificate, or one of another CA with the same name in it: the handshake fails."""
    mine = shared.sandboxes.issue_cert("a.sandbox.example")
    _, handles = shared.session(OriginClass.MTLS, fingerprint(mine))
    for certificate in (None, trustme.CA().issue_cert("a.sandbox.example")):
        async with shared.client(certificate) as client:
            with pytest.raises(httpx.TransportError):
                await shared.ask(client, handles)
    assert not shared.daemon.decisions()


@pytest.mark.parametrize("shared", [{"tls": True}], indirect=True)
async def test_silent_clients_hold_up_nobody(shared: Shared) -> None:
    """Fifty connections that never finish a handshake: a proper client is served meanwhile."""
    mine = shared.sandboxes.issue_cert("a.sandbox.example")
    _, handles = shared.session(OriginClass.MTLS, fingerprint(mine))
    port = shared.port
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
    for _, writer in silent[:25]:
        writer.write(b"\x16\x03\x01\x02\x00\x01")
    async with shared.client(mine) as client:
        assert await shared.ask(client, handles) == "ok"
    assert not any(reader.at_eof() for reader, _ in silent)
    for _, writer in silent:
        writer.transport.abort()


@pytest.mark.parametrize("shared", [{"tls": True}], indirect=True)
async def test_a_handshake_has_a_deadline(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that connects and says nothing is disconnected."""
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 0.3)
    assert shared.daemon.listeners is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shared.sandboxes.issue_cert("127.0.0.1").configure_cert(context)
    address = await shared.daemon.listeners.open_shared(
        listener.SharedListener("other", "127.0.0.1", 0, tls=context)
    )
    reader, writer = await asyncio.open_connection(*address)
    try:
        async with asyncio.timeout(5):
            assert await reader.read() == b""
    except ConnectionError:
        pass  # a reset says the same
    writer.close()


# --- token -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [{"tokens": True}], indirect=True)
async def test_a_platform_token_proves_its_pods_session_and_no_other(
    shared: Shared, origin_server: TlsServer
) -> None:
    """The pod's token works, not for a credential that demands more; another pod's is a thief's."""
    _, handles = shared.session(OriginClass.TOKEN, f"{ISSUER}|pod-a")
    shared.session(OriginClass.TOKEN, f"{ISSUER}|pod-b")
    async with shared.client(Proxy_Authorization=f"Bearer {shared.platform.token('pod-a')}") as client:
        assert await shared.ask(client, handles) == "ok"
        assert await shared.ask(client, handles, "anthropic") == "origin_class_refused"
    assert [seen.genuine for seen in origin_server.seen] == ["openai"]
    async with shared.client(Proxy_Authorization=f"Bearer {shared.platform.token('pod-b')}") as thief:
        assert await shared.ask(thief, handles) == "handle_stolen"


@pytest.mark.parametrize("shared", [{"tokens": True}], indirect=True)
async def test_a_token_that_proves_nothing_opens_no_tunnel(
    shared: Shared, tmp_path: Path, origin_server: TlsServer
) -> None:
    """Wrong audience, expired, forged, of a pod without a session, or none at all: 407."""
    _, handles = shared.session(OriginClass.TOKEN, f"{ISSUER}|pod-a")
    platform = shared.platform
    bad = [
        platform.token(aud=["other"]),
        platform.token(exp=int(time.time()) - 1),
        Platform(tmp_path / "forger.json").token(),
        platform.token("pod-c"),
    ]
    for token in bad:
        async with shared.client(Proxy_Authorization=f"Bearer {token}") as client:
            assert await shared.ask(client, handles) == "origin_unknown"
    async with shared.client() as client:
        assert await shared.ask(client, handles) == "origin_unknown"
    assert not origin_server.seen


@pytest.mark.parametrize("shared", [{"tokens": True}], indirect=True)
async def test_a_kept_tunnel_does_not_outlive_its_token(shared: Shared) -> None:
    """The first request passes; after the token's end the same connection proves nothing."""
    _, handles = shared.session(OriginClass.TOKEN, f"{ISSUER}|pod-a")
    ends = int(time.time()) + 4
    token = shared.platform.token(exp=ends)
    async with shared.client(Proxy_Authorization=f"Bearer {token}") as client:
        assert await shared.ask(client, handles) == "ok"
        await asyncio.sleep(ends + 0.2 - time.time())
        assert await shared.ask(client, handles) == "origin_unknown"


@pytest.mark.parametrize("shared", [{"tokens": True, "addresses": True}], indirect=True)
async def test_two_proofs_of_two_sessions_are_a_contradiction(shared: Shared) -> None:
    """A pod's token from another sandbox's address: refused, and an alarm."""
    _, handles = shared.session(OriginClass.TOKEN, f"{ISSUER}|pod-a")
    shared.session(OriginClass.ADDRESS, "proxy|127.0.0.1")
    async with shared.client(Proxy_Authorization=f"Bearer {shared.platform.token()}") as client:
        assert await shared.ask(client, handles) == "origin_unknown"
    assert shared.daemon.records()[-1]["type"] == "alarm"


# --- address ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [{"addresses": True}], indirect=True)
async def test_a_source_address_proves_its_session_where_it_cannot_be_spoofed(shared: Shared) -> None:
    """127.0.0.1's session is 127.0.0.1's; 127.0.0.2 is somebody else, whatever its headers say."""
    _, handles = shared.session(OriginClass.ADDRESS, "proxy|127.0.0.1")
    async with shared.client() as client:
        assert await shared.ask(client, handles) == "ok"
        assert await shared.ask(client, handles, "anthropic") == "origin_class_refused"
    port = shared.port
    for preface in (b"", b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        writer.write(
            preface + b"CONNECT api.openai.com:443 HTTP/1.1\r\nHost: api.openai.com:443\r\n"
            b"X-Forwarded-For: 127.0.0.1\r\nForwarded: for=127.0.0.1\r\n\r\n"
        )
        async with asyncio.timeout(5):
            answer = await reader.read(100)
        assert not answer.startswith(b"HTTP/1.1 200")
        writer.close()


async def test_an_address_proves_nothing_where_nobody_said_so(shared: Shared) -> None:
    """Without proxy_trust_addresses the same session cannot be used."""
    _, handles = shared.session(OriginClass.ADDRESS, "proxy|127.0.0.1")
    async with shared.client() as client:
        assert await shared.ask(client, handles) == "origin_unknown"


async def test_one_source_address_cannot_take_all_connections(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has used up its share is told so at once; others are served."""
    monkeypatch.setattr(listener, "MAX_PER_SESSION", 2)
    opened = [
        await asyncio.open_connection("127.0.0.1", shared.port, local_addr=("127.0.0.2", 0)) for _ in range(3)
    ]
    async with asyncio.timeout(5):
        assert (await opened[2][0].read()).startswith(b"HTTP/1.1 503")
    shared.session(OriginClass.BEARER, hashlib.sha256(b"pa55").hexdigest())
    async with shared.client(Proxy_Authorization="Bearer pa55") as client:
        assert (await client.get("http://upstream.example/")).status_code == 200
    for _, writer in opened:
        writer.transport.abort()


async def test_greedy_sandboxes_together_leave_connections_for_the_others(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last ones are for who has few, and the greedy one is told so."""
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(listener, "RESERVED", 3)

    async def open_from(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", shared.port, local_addr=(address, 0))

    opened = [await open_from("127.0.0.2") for _ in range(6)]
    async with asyncio.timeout(5):
        assert (await opened[5][0].read()).startswith(b"HTTP/1.1 503")
    shared.session(OriginClass.BEARER, hashlib.sha256(b"pa55").hexdigest())
    for _ in range(3):
        async with shared.client(Proxy_Authorization="Bearer pa55") as client:
            assert (await client.get("http://upstream.example/")).status_code == 200
    for _, writer in opened:
        writer.transport.abort()


async def test_a_sandbox_that_opens_connection_after_connection_waits_for_itself_alone(
    shared: Shared,
) -> None:
    """Past its burst each connection is looked at later, and answered all the same; others are at once."""
    listeners = shared.daemon.listeners
    assert listeners is not None
    listeners.rates.rate = Rate(50, 1.0, burst=3)

    async def refused_from(address: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", shared.port, local_addr=(address, 0))
        writer.write(b"CONNECT nobody.example:443 HTTP/1.1\r\nHost: nobody.example:443\r\n\r\n")
        try:
            return (await reader.readline()).split()[1]
        finally:
            writer.transport.abort()

    assert {await refused_from("127.0.0.2") for _ in range(10)} == {b"407"}
    listeners.rates.rate = Rate(1, 600.0, burst=3)
    assert {await refused_from("127.0.0.4") for _ in range(3)} == {b"407"}
    late = asyncio.create_task(refused_from("127.0.0.4"))
    assert await refused_from("127.0.0.3") == b"407"
    assert not late.done()
    late.cancel()


# --- bearer ----------------------------------------------------------------------------------------------


async def test_a_proxy_password_identifies_but_gets_no_real_credential(
    shared: Shared, origin_server: TlsServer
) -> None:
    """It can be stolen with the handle, so that the default refuses it."""
    _, handles = shared.session(OriginClass.BEARER, hashlib.sha256(b"pa55").hexdigest())
    for shown in ("Bearer pa55", "Basic c2FuZGJveDpwYTU1"):
        async with shared.client(Proxy_Authorization=shown) as client:
            assert await shared.ask(client, handles) == "origin_class_refused"
    async with shared.client(Proxy_Authorization="Bearer other") as client:
        assert await shared.ask(client, handles) == "origin_unknown"
    assert not origin_server.seen


async def test_proxy_authorization_is_never_forwarded(shared: Shared) -> None:
    """Neither in a tunnel's requests nor in plain ones: it is ours."""
    shared.session(OriginClass.BEARER, hashlib.sha256(b"pa55").hexdigest())
    async with shared.client(Proxy_Authorization="Bearer pa55") as client:
        answer = await client.get("http://upstream.example/", headers={"Proxy-Authorization": "Bearer pa55"})
    assert answer.status_code == 200
    assert "GET / HTTP/1.1" in answer.text
    assert "pa55" not in answer.text
    assert "proxy-authorization" not in answer.text.lower()


# --- sessions that are over ---------------------------------------------------------------------------


async def told_why(address: tuple[str, int]) -> tuple[int, str]:
    """Status and reason of a CONNECT; 0: nobody listens there."""
    try:
        reader, writer = await asyncio.open_connection(*address)
    except OSError:
        return 0, ""
    writer.write(b"CONNECT api.openai.com:443 HTTP/1.1\r\nHost: api.openai.com:443\r\n\r\n")
    head = await reader.read(65_536)
    writer.close()
    (reason,) = re.findall(rb"(?mi)^coatcheck-reason: (\w+)", head)
    return int(head.split()[1]), reason.decode()


@pytest.mark.parametrize("way", ["revoked", "ended", "lapsed", "expired"])
async def test_a_session_that_is_over_answers_why_for_a_while_and_then_its_port_is_free(
    daemon: TestDaemon, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A port that is merely closed tells nobody that the session ended, nor how."""
    monkeypatch.setattr(listener, "ANSWERING_SECONDS", 1.0)
    wanted = {"lapsed": {"lease_seconds": 1.0}, "expired": {"max_age": 1.0}}.get(way, {})
    sandbox = await daemon.sandbox(**wanted)
    if way == "revoked":
        await asyncio.to_thread(daemon.state.revoke, sandbox.session.id, "test")
    elif way == "ended":
        await asyncio.to_thread(daemon.state.end, sandbox.session.id, "test")
    else:
        await asyncio.sleep(1.1)
    reason = {"lapsed": "lease_lapsed", "expired": "session_expired"}.get(way, "session_revoked")
    assert await told_why(sandbox.address) == (401, reason)
    until = time.monotonic() + 15
    while (said := await told_why(sandbox.address)) != (0, ""):
        assert said == (401, reason) and time.monotonic() < until
        await asyncio.sleep(0.2)


async def test_so_many_answer_at_once_and_the_oldest_gives_way(
    daemon: TestDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions come and go all day; each listener is a descriptor."""
    monkeypatch.setattr(listener, "MAX_ANSWERING", 3)
    over = [await daemon.sandbox() for _ in range(5)]
    for each in over:
        await asyncio.to_thread(daemon.state.end, each.session.id, "test")
        await asyncio.sleep(0.05)
    assert [(await told_why(each.address))[0] for each in over] == [0, 0, 401, 401, 401]


async def test_a_live_session_gets_the_address_of_one_that_is_over(daemon: TestDaemon) -> None:
    """Nobody's connection to a live session is answered for a dead one."""
    assert daemon.listeners is not None
    over = await daemon.sandbox()
    await asyncio.to_thread(daemon.state.end, over.session.id, "test")
    await asyncio.sleep(0.05)
    assert await told_why(over.address) == (401, "session_revoked")
    live, _ = daemon.state.open_session(NewSession(tenant="acme", subject="agent", policy="default"), "test")
    assert await daemon.listeners.open_tcp(live.id, over.address[1]) == over.address
    reader, writer = await asyncio.open_connection(*over.address)
    writer.write(b"CONNECT api.openai.com:443 HTTP/1.1\r\nHost: api.openai.com:443\r\n\r\n")
    assert b" 200 " in await reader.readline()
    writer.close()
