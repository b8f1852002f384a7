"""An upstream that recomputes each request's HMAC takes what a sandbox sends with a handle."""

import hashlib
import hmac
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from tests.daemon import TestDaemon, running_daemon
from tests.known_secrets import known_secret
from tests.system.e2e.inside import Inside, inside
from tests.upstreams import UpstreamTls

HOST = "api.openai.com"
WINDOW = 30.0
"""Seconds that a signature counts."""
POLICY = r"""
version: 1
owner: tests
credentials:
  exchange:
    secret: memory:secret/exchange#key
    hosts: [api.openai.com]
    inject:
      hmac:
        header: X-Signature
        value: "v1={signature}"
        message: "{timestamp}\n{method}\n{path}?{query}\n{host}\n{header:Content-Type}\n{body_sha256}"
        timestamp: {header: X-Timestamp, format: unix_ms}
        max: 64KiB
    env: EXCHANGE_KEY
  sdk:
    secret: memory:secret/exchange#key
    hosts: [api.openai.com]
    inject:
      hmac:
        header: X-Signature
        value: "v1={signature}"
        message: "{timestamp}\n{method}\n{path}?{query}\n{host}\n{header:Content-Type}\n{body_sha256}"
        timestamp: {header: X-Timestamp, format: unix_ms}
        key_id: {header: X-Key, value: account-7}
    env: SDK_KEY
rules:
  - name: sdk
    hosts: [api.openai.com]
    methods: [POST]
    paths: ["/sdk/**"]
    credentials: [sdk]
  - name: exchange
    hosts: [api.openai.com]
    methods: [GET, POST]
    credentials: [exchange]
"""


@dataclass
class Verifier:
    """Where it listens, what it took, and what it refused."""

    port: int = 0
    taken: list[tuple[str, str, bytes]] = field(default_factory=list)
    signatures: list[str] = field(default_factory=list)
    refused: int = 0

    async def handle(self, request: web.Request) -> web.Response:
        body, sent = await request.read(), request.headers
        target = request.raw_path if "?" in request.raw_path else request.raw_path + "?"
        digest = hashlib.sha256(body).hexdigest()
        at, kind = sent.get("X-Timestamp", "0"), sent.get("Content-Type", "")
        message = "\n".join((at, request.method, target, sent["Host"], kind, digest))
        expected = "v1=" + hmac.new(signing_key().encode(), message.encode(), "sha256").hexdigest()
        fresh = abs(time.time() - int(at) / 1000) < WINDOW
        if not fresh or not hmac.compare_digest(expected, sent.get("X-Signature", "")):
            self.refused += 1
            return web.Response(status=403, text="no")
        self.taken.append((request.raw_path, sent.get("X-Key", ""), body))
        self.signatures.append(expected.removeprefix("v1="))
        # As verbose APIs do: all that was sent comes back.
        return web.Response(text=f"{dict(sent)} {expected} {signing_key()}", headers={"X-Echo": expected})


def signing_key() -> str:
    return known_secret("e2e hmac key", prefix="")


@pytest.fixture
async def verifier(upstream_tls: UpstreamTls) -> AsyncIterator[Verifier]:
    running = Verifier()
    app = web.Application(client_max_size=1 << 20)
    app.router.add_route("*", "/{path:.*}", running.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(upstream_tls.certificate, upstream_tls.key)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    running.port = runner.addresses[0][1]
    yield running
    await runner.cleanup()


@pytest.fixture
async def daemon(place: Path, verifier: Verifier, upstream_tls: UpstreamTls) -> AsyncIterator[TestDaemon]:
    secrets = {"memory:secret/exchange#key": signing_key()}
    connect = {f"{HOST}:443": verifier.port}
    async with running_daemon(place, POLICY, secrets, upstream_ca=upstream_tls.ca, connect_to=connect) as up:
        yield up


@pytest.fixture
async def client(daemon: TestDaemon, tmp_path: Path) -> Inside:
    return inside(await daemon.sandbox(), tmp_path / "home")


async def test_a_handle_in_the_signatures_header_becomes_the_signature(
    client: Inside, verifier: Verifier
) -> None:
    """Without a body, with one, and with a query; neither key nor signature comes back, however it is
    echoed."""
    handle = client.environment["EXCHANGE_KEY"]
    common = ("-sS", "-D", "-", "-H", f"X-Signature: v1={handle}", "-H", "Content-Type: application/json")
    requests: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("/v1/balance", ()),
        ("/v1/orders?limit=2&b=%2F", ()),
        ("/v1/orders", ("--data-binary", '{"amount": 3}')),
        ("/v1/orders", ("--data-binary", '{"amount": 3}', "-H", "Transfer-Encoding: chunked")),
        ("/v1/orders", ("-X", "POST", "-H", "X-Timestamp: 1")),
    )
    for target, more in requests:
        ran = await client.run("curl", *common, *more, f"https://{HOST}{target}")
        assert " 200 " in ran.output, ran.output
        assert verifier.taken[-1][0] == target
        assert verifier.signatures[-1] not in ran.output and ran.output.count("v1=****") == 3
    assert verifier.refused == 0 and len(verifier.taken) == 5
    assert verifier.taken[2][2] == verifier.taken[3][2] == b'{"amount": 3}'
    assert handle not in str(verifier.taken)


async def test_an_sdk_that_signs_by_itself_names_the_handle_as_its_key(
    client: Inside, verifier: Verifier
) -> None:
    """Its key's name is the handle; what it signed with, and when, is replaced."""
    named, line = ("-H", f"X-Key: {client.environment['SDK_KEY']}"), ("-H", "Content-Type: application/json")
    signed = ("-H", "X-Signature: v1=0000", "-H", "X-Timestamp: 12", "--data-binary", "{}")
    ran = await client.run("curl", "-sS", *line, *named, *signed, f"https://{HOST}/sdk/orders")
    assert verifier.taken == [("/sdk/orders", "account-7", b"{}")], ran.output


async def test_what_cannot_be_signed_does_not_leave(client: Inside, verifier: Verifier) -> None:
    """No handle, one in another place, a header to sign that is not there, a body that is too large."""
    large = client.home / "large"
    large.write_bytes(b"x" * 70_000)
    handle = client.environment["EXCHANGE_KEY"]
    shown, line = ("-H", f"X-Signature: v1={handle}"), ("-H", "Content-Type: a")
    body = (*line, *shown, "--data-binary", f"@{large}")
    requests: tuple[tuple[tuple[str, ...], str], ...] = (
        (line, "handle_missing"),
        ((*line, "-H", f"X-Signature: v2={handle}"), "handle_misplaced"),
        ((*line, "-H", f"X-Key: {handle}"), "handle_misplaced"),
        (shown, "header_form_refused"),
        (body, "body_too_large"),
        ((*body, "-H", "Transfer-Encoding: chunked"), "body_too_large"),
    )
    for arguments, reason in requests:
        ran = await client.run("curl", "-sS", "-D", "-", *arguments, f"https://{HOST}/v1/orders")
        assert f"coatcheck-reason: {reason}" in ran.output.lower(), (arguments, ran.output)
    assert verifier.taken == [] and verifier.refused == 0


async def test_the_host_is_signed_as_it_is_sent(
    place: Path, verifier: Verifier, upstream_tls: UpstreamTls, tmp_path: Path
) -> None:
    """Over HTTP/2 the host is in :authority, here with the port that https has anyway; the upstream's Host is
    the one that was signed."""
    policy = POLICY.replace("methods: [GET, POST]", "methods: [GET, POST]\n    http2: true")
    secrets, connect = {"memory:secret/exchange#key": signing_key()}, {f"{HOST}:443": verifier.port}
    async with running_daemon(
        place, policy, secrets, upstream_ca=upstream_tls.ca, connect_to=connect
    ) as daemon:
        client = inside(await daemon.sandbox(), tmp_path / "home")
        shown = ("-H", f"X-Signature: v1={client.environment['EXCHANGE_KEY']}", "-H", "Content-Type: a")
        for version, status in (("--http2", "HTTP/2 200"), ("--http1.1", "HTTP/1.1 200")):
            for host in (HOST, f"{HOST}:443"):
                named = (version, "-H", f"Host: {host}", f"https://{HOST}/v1/balance")
                ran = await client.run("curl", "-sS", "-D", "-", *shown, *named)
                assert status in ran.output, (version, host, ran.output)
    assert verifier.refused == 0 and len(verifier.taken) == 4
