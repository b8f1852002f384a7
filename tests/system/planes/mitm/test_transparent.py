"""Clients that know of no proxy: the name they say is judged, the address they dialled is evidence."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coatcheck.planes.mitm import deadlines
from demo.upstreams.server import TlsServer
from tests.daemon import Sandbox, TestDaemon, running_daemon
from tests.planes.attack import eventually, nothing_is_left, request
from tests.planes.h2_client import H2Client
from tests.planes.raw_origin import RawOrigin
from tests.planes.redirected import ELSEWHERE, connected, dialled, negotiated, secured, whole_sandbox
from tests.planes.wire import Wire
from tests.system.planes.mitm.test_tunnel import POLICY as PINNED
from tests.upstreams import UpstreamTls


@pytest.fixture
async def sandbox(daemon: TestDaemon) -> Sandbox:
    return await whole_sandbox(daemon)


@pytest.fixture
async def raw_sandbox(raw_daemon: TestDaemon) -> Sandbox:
    return await whole_sandbox(raw_daemon)


def plain(host: str = "other.example", line: str = "GET / HTTP/1.1", extra: str = "") -> bytes:
    return f"{line}\r\nHost: {host}\r\n{extra}\r\n".encode()


async def told(raw: Wire) -> tuple[int, str]:
    """Status and reason of a refusal, as its body and its header say."""
    head = (await raw.head()).lower()
    length = int(head.partition("content-length:")[2].split()[0])
    error = json.loads(await raw.reader.readexactly(length))["error"]
    assert f"coatcheck-reason: {error['reason']}" in head
    assert error["hint"]
    assert error["request_id"] != "-"
    return int(head.split()[1]), error["reason"]


# --- what works --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 6])
async def test_a_client_that_knows_of_no_proxy_gets_the_secret_put_in(
    daemon: TestDaemon, sandbox: Sandbox, origin_server: TlsServer, real_keys: dict[str, str], version: int
) -> None:
    """By its server name and Host, over either family; kept alive; the address it dialled is recorded."""
    address = dialled("api.openai.com", version)
    async with secured(daemon, sandbox, address=address) as raw:
        assert negotiated(raw).selected_alpn_protocol() is None
        for _ in range(2):
            await raw.send(request(sandbox))
            head = await raw.head()
            assert head.startswith("HTTP/1.1 200")
            await raw.reader.readexactly(int(head.lower().partition("content-length:")[2].split()[0]))
    assert len(origin_server.seen) == 2
    decision = daemon.decisions()[-1]
    assert (decision["outcome"], decision["rule"], decision["origin"]) == ("inject", "openai", "socket")
    shown = f"[{address}]" if version == 6 else address
    assert decision["original"] == f"{shown}:443"
    await nothing_is_left(daemon)


async def test_a_literal_address_is_never_dialled(
    daemon: TestDaemon, sandbox: Sandbox, origin_server: TlsServer
) -> None:
    """A metadata service, a private host, somebody's server: what is dialled is what the policy's name is."""
    for address in ("169.254.169.254", "10.0.0.1", ELSEWHERE, "::1", "2001:db8::7"):
        async with secured(daemon, sandbox, address=address) as raw:
            await raw.send(request(sandbox))
            assert await raw.status() == 200
    assert len(origin_server.seen) == 5


async def test_plain_http_goes_where_its_host_says(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, plain_origin: RawOrigin
) -> None:
    """In origin form, where the policy allows plain HTTP."""
    async with connected(raw_sandbox, dialled("other.example"), 80) as raw:
        await raw.send(plain() + plain(extra="X-Second: 1\r\n"))
        assert await raw.status() == 200
        await raw.reader.readexactly(2)
        assert await raw.status() == 200
    assert b"X-Second: 1" in plain_origin.heads[0]
    assert raw_daemon.decisions()[-1]["destination"] == "http://other.example"


async def test_proxy_authorization_means_nothing_to_who_knows_of_no_proxy(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, plain_origin: RawOrigin
) -> None:
    """It neither proves anybody nor goes on."""
    async with connected(raw_sandbox, dialled("other.example"), 80) as raw:
        await raw.send(plain(extra="Proxy-Authorization: Bearer pa55\r\n"))
        assert await raw.status() == 200
    assert b"pa55" not in plain_origin.heads[0]
    assert raw_daemon.decisions()[-1]["origin"] == "socket"


async def test_the_policy_says_who_may_speak_http_2(raw_daemon: TestDaemon, raw_sandbox: Sandbox) -> None:
    """As behind a CONNECT."""
    async with secured(raw_daemon, raw_sandbox, "upstream.example", alpn=("h2", "http/1.1")) as raw:
        assert negotiated(raw).selected_alpn_protocol() == "http/1.1"
    async with secured(raw_daemon, raw_sandbox, "api.github.com", alpn=("h2", "http/1.1")) as raw:
        assert negotiated(raw).selected_alpn_protocol() == "h2"
        client = H2Client(raw.reader, raw.writer, raw_sandbox)
        client.h2.initiate_connection()
        stream = client.request(handle=False)
        await client.flush()
        running = asyncio.create_task(client.run())
        await eventually(lambda: stream in client.ended)
        assert (client.status[stream], client.got[stream]) == ("200", b"ok")
        running.cancel()


async def test_a_client_that_pins_passes_unopened(
    tmp_path: Path, all_output: Path, origin_server: TlsServer, upstream_tls: UpstreamTls
) -> None:
    """`tunnel: true`: the upstream's own certificate, and only to its own name."""
    async with running_daemon(
        all_output / tmp_path.name,
        PINNED,
        upstream_ca=upstream_tls.ca,
        connect_to={"upstream.example:443": origin_server.port},
    ) as pinned:
        sandbox = await whole_sandbox(pinned)
        async with connected(sandbox, dialled("upstream.example")) as raw:
            await raw.start_tls(upstream_tls.ca, "upstream.example")
            await raw.send(
                b"GET /big?bytes=5000 HTTP/1.1\r\nHost: upstream.example\r\nConnection: close\r\n\r\n"
            )
            assert await raw.status() == 200
            assert len(await raw.rest()) == 5000
        decision = pinned.decisions()[-1]
        assert (decision["outcome"], decision["rule"], decision["method"]) == ("pass", "pinned", "CONNECT")
        async with connected(sandbox, dialled("other.example")) as raw:
            await raw.start_tls(pinned.trust.ca, "upstream.example")
            await raw.send(plain("upstream.example"))
            assert await told(raw) == (421, "authority_mismatch")
        await nothing_is_left(pinned)


async def test_each_sessions_own_ca_signs_here_too(
    tmp_path: Path, all_output: Path, upstream_tls: UpstreamTls
) -> None:
    """Also for what is refused."""
    async with running_daemon(
        all_output / tmp_path.name, PINNED, upstream_ca=upstream_tls.ca, connect_to={}, session_ca=True
    ) as own:
        sandbox = await whole_sandbox(own)
        async with connected(sandbox) as raw:
            await raw.start_tls(own.trust_for(sandbox.session.id).ca, "denied.example")
            await raw.send(plain("denied.example"))
            assert await told(raw) == (403, "host_not_allowed")
        async with connected(sandbox) as raw:
            with pytest.raises(ssl.SSLCertVerificationError):
                await raw.start_tls(own.trust.ca, "denied.example")


# --- what is refused, and told -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "address", "port", "reason"),
    [
        ("denied.example", "", 443, "host_not_allowed"),
        ("api.openai.com", "", 8443, "port_not_allowed"),
        ("api.openai.com", dialled("api.anthropic.com"), 443, "authority_mismatch"),
        ("api.openai.com", dialled("api.anthropic.com", 6), 443, "authority_mismatch"),
        ("api.openai.com", "198.18.0.1", 443, "authority_mismatch"),
        ("api.openai.com", f"::ffff:{dialled('denied.example')}", 443, "authority_mismatch"),
    ],
)
async def test_a_refusal_is_told_in_the_clients_own_tls(
    daemon: TestDaemon,
    sandbox: Sandbox,
    origin_server: TlsServer,
    host: str,
    address: str,
    port: int,
    reason: str,
) -> None:
    """A closed connection would tell an agent nothing. It is recorded once, and nothing leaves."""
    authority = host if port == 443 else f"{host}:{port}"
    async with secured(daemon, sandbox, host, address, port) as raw:
        for _ in range(2):
            await raw.send(request(sandbox, host=authority))
            assert (await told(raw))[1] == reason
    assert not origin_server.seen
    (decision,) = daemon.decisions()
    assert (decision["outcome"], decision["reason"]) == ("deny", reason)
    assert decision["alarm"] is (reason == "authority_mismatch")
    await nothing_is_left(daemon)


async def test_without_a_server_name_nobody_knows_who_is_meant(
    daemon: TestDaemon, sandbox: Sandbox, origin_server: TlsServer
) -> None:
    """Whatever Host comes later. The client that dialled an address can read why."""
    async with secured(daemon, sandbox, ELSEWHERE, ELSEWHERE) as raw:
        await raw.send(request(sandbox))
        assert await told(raw) == (421, "authority_mismatch")
    assert "server name" in daemon.decisions()[-1]["detail"]
    assert not origin_server.seen


async def test_a_connection_that_was_refused_stays_so(daemon: TestDaemon, sandbox: Sandbox) -> None:
    """A CONNECT in it was answered with the refusal that was kept for all that follows."""
    async with secured(daemon, sandbox, "denied.example") as raw:
        for line in ("CONNECT denied.example:443 HTTP/1.1", "GET / HTTP/1.1"):
            await raw.send(plain("denied.example", line))
            await told(raw)
    assert [decision["reason"] for decision in daemon.decisions()] == ["host_not_allowed"]


async def test_a_host_other_than_the_server_name_is_refused(
    daemon: TestDaemon, sandbox: Sandbox, origin_server: TlsServer
) -> None:
    """Domain fronting, with both names allowed; also in a later request."""
    async with secured(daemon, sandbox, "upstream.example") as raw:
        await raw.send(plain("upstream.example", "HEAD / HTTP/1.1"))
        assert await raw.status() == 404
        await raw.send(request(sandbox))
        assert await told(raw) == (421, "authority_mismatch")
    assert daemon.decisions()[-1]["alarm"] is True
    assert [seen.path for seen in origin_server.seen] == ["/"]


REFUSED_PLAIN = {
    "two_hosts": (
        b"GET / HTTP/1.1\r\nHost: other.example\r\nHost: api.openai.com\r\n\r\n",
        "authority_mismatch",
    ),
    "one_host_twice": (
        b"GET / HTTP/1.1\r\nHost: other.example\r\nHost: other.example\r\n\r\n",
        "header_form_refused",
    ),
    "no_host": (b"GET / HTTP/1.1\r\n\r\n", "authority_mismatch"),
    "no_host_in_absolute_form": (b"GET http://other.example/ HTTP/1.1\r\n\r\n", "authority_mismatch"),
    "empty_host": (plain(""), "host_form_refused"),
    "absolute_form": (plain(line="GET http://other.example/ HTTP/1.1"), "authority_mismatch"),
    "absolute_form_elsewhere": (plain(line="GET http://api.openai.com/ HTTP/1.1"), "authority_mismatch"),
    "connect": (plain("other.example:443", "CONNECT other.example:443 HTTP/1.1"), "protocol_refused"),
    "connect_here": (plain(line="CONNECT other.example:80 HTTP/1.1"), "protocol_refused"),
    "another_port": (plain("other.example:443"), "authority_mismatch"),
    "reverse": (plain("localhost", "GET /openai/v1/models HTTP/1.1"), "authority_mismatch"),
    "the_address_of_another": (plain("upstream.example"), "authority_mismatch"),
    "itself_as_address": (plain(dialled("other.example")), "authority_mismatch"),
    "h2_preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "framing_refused"),
    "bare_lf": (b"GET / HTTP/1.1\nHost: other.example\n\n", "framing_refused"),
}


async def test_reverse_mode_is_no_way_in_for_who_names_nobody(
    daemon: TestDaemon, sandbox: Sandbox, origin_server: TlsServer
) -> None:
    """Without TLS and without a Host, the path's first segment was taken for a base URL's."""
    async with connected(sandbox, dialled("api.openai.com"), 443) as raw:
        handle = sandbox.handles["openai"]
        await raw.send(f"GET /openai/v1/models HTTP/1.1\r\nAuthorization: Bearer {handle}\r\n\r\n".encode())
        assert await told(raw) == (421, "authority_mismatch")
    assert not origin_server.seen


@pytest.mark.parametrize("attack", REFUSED_PLAIN)
async def test_plain_http_has_one_reading(
    raw_daemon: TestDaemon,
    raw_sandbox: Sandbox,
    raw_origin: RawOrigin,
    plain_origin: RawOrigin,
    attack: str,
) -> None:
    """Origin form, one Host, for the port that was dialled; no proxy is to be asked here."""
    data, reason = REFUSED_PLAIN[attack]
    async with connected(raw_sandbox, dialled("other.example"), 80) as raw:
        await raw.send(data)
        assert (await told(raw))[1] == reason
    assert raw_origin.saw_nothing
    assert plain_origin.saw_nothing
    assert raw_daemon.decisions()[-1]["outcome"] == "deny"
    await nothing_is_left(raw_daemon)


async def test_a_connect_inside_of_tls_is_refused(raw_daemon: TestDaemon, raw_sandbox: Sandbox) -> None:
    """A tunnel in a tunnel would be judged by nobody."""
    async with secured(raw_daemon, raw_sandbox, "upstream.example") as raw:
        await raw.send(plain("api.openai.com:443", "CONNECT api.openai.com:443 HTTP/1.1"))
        assert (await told(raw))[1] == "protocol_refused"


@pytest.mark.parametrize(
    "first",
    [b"SSH-2.0-OpenSSH_9.9\r\n", b"\0\1\2\3", b"\x80\x2e\1\3\1", b"\r\nGET / HTTP/1.1\r\n", b"\x05\1\0"],
)
async def test_what_is_neither_tls_nor_http_is_told_so(
    daemon: TestDaemon, sandbox: Sandbox, first: bytes
) -> None:
    """SSH begins like HTTP, and fails as that. The rest is refused by its first byte."""
    async with connected(sandbox) as raw:
        await raw.send(first)
        assert (await told(raw))[1] in ("protocol_refused", "framing_refused")
        assert await raw.rest() == b""
    assert daemon.decisions()[-1]["outcome"] == "deny"
    await nothing_is_left(daemon)


HELLOS = {
    "not_a_hello": b"\x16\3\1\0\4\2\0\0\0",
    "an_empty_record": b"\x16\3\1\0\0",
    "no_such_version": b"\x16\2\0\0\4\1\0\0\0",
    "garbage_of_the_right_size": b"\x16\3\1\0\x44\1\0\0\x40" + b"\xff" * 64,
    "announces_16_mib": b"\x16\3\1\x3f\xff\1\xff\xff\xff",
    "in_crumbs": b"".join(b"\x16\3\1\0\1" + bytes((byte,)) for byte in b"\1\0\2\0" + bytes(40)),
}


@pytest.mark.parametrize("attack", HELLOS)
async def test_a_hello_that_is_none_gets_an_alert(daemon: TestDaemon, sandbox: Sandbox, attack: str) -> None:
    """At once: nothing is collected that cannot become a ClientHello."""
    async with connected(sandbox) as raw:
        await raw.send(HELLOS[attack])
        assert await raw.rest() == b"\x15\3\3\0\2\2\x32"
    assert daemon.decisions()[-1]["reason"] == "protocol_refused"
    assert daemon.plane is not None
    assert daemon.plane.failures == 0
    await nothing_is_left(daemon)


async def test_a_server_name_that_is_no_host_gets_an_alert(daemon: TestDaemon, sandbox: Sandbox) -> None:
    """No certificate is made for a name that two readers may read differently."""
    async with connected(sandbox) as raw:
        with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
            await raw.start_tls(daemon.trust.ca, "under_score.example")
    assert daemon.decisions()[-1]["reason"] == "host_form_refused"


async def test_who_says_too_little_for_too_long_is_cut_off(
    daemon: TestDaemon, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent client holds a place for as long as a request head may take, not longer."""
    monkeypatch.setattr(deadlines, "HEAD_SECONDS", 0.2)

    async def begin(first: bytes) -> bytes:
        async with connected(sandbox) as raw:
            await raw.send(first)
            return await raw.rest()

    said = (b"", b"\x16", b"\x16\3\1\2\0\1", b"GET / HT", b"GET / HTTP/1.1\r\nHost: upstr")
    assert await asyncio.gather(*(begin(first) for first in said)) == [b""] * len(said)
    await nothing_is_left(daemon)


async def test_revoking_the_session_ends_what_is_open(
    daemon: TestDaemon, sandbox: Sandbox, origin_server: TlsServer
) -> None:
    """A stream and an idle connection, at once."""
    async with secured(daemon, sandbox, "upstream.example") as raw, connected(sandbox) as idle:
        await raw.send(plain("upstream.example", "GET /sse?n=100&gap_ms=50 HTTP/1.1"))
        assert await raw.status() == 200
        await asyncio.to_thread(daemon.state.revoke, sandbox.session.id, "test")
        async with asyncio.timeout(1):
            await raw.rest()
            assert await idle.rest() == b""
    await nothing_is_left(daemon)


@pytest.fixture
async def small(tmp_path: Path, all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[TestDaemon]:
    async with running_daemon(
        all_output / tmp_path.name, PINNED, upstream_ca=upstream_tls.ca, connect_to={}
    ) as running:
        yield running


async def test_names_that_are_refused_drive_nobody_elses_from_the_cache(small: TestDaemon) -> None:
    """A sandbox may make up as many as it likes."""
    assert small.plane is not None
    sandbox = await whole_sandbox(small)
    for number in range(3):
        async with secured(small, sandbox, f"n{number}.example"):
            pass
    assert len(small.plane.shared.signing_ca.daemons) == 0
    assert len(small.plane.shared.signing_ca.for_refusals) == 3
