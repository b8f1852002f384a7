"""Leaving through a corporate proxy: what it is asked, what it may answer, what it costs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from coatcheck.decision.address import parse_networks
from coatcheck.decision.denial import Reason
from coatcheck.planes.upstream.upstream import ParentProxy, Upstream, UpstreamRefused, UpstreamSettings
from coatcheck.settings.daemon import Settings
from demo.upstreams.server import TlsServer
from tests.daemon import TestDaemon, running_daemon
from tests.planes.connect_proxy import ConnectProxy, connect_proxy
from tests.planes.wire import http_client
from tests.system.planes.conftest import POLICY
from tests.upstreams import UpstreamTls

WITH_LITERALS = (
    POLICY
    + """
  - name: literal
    hosts: [10.1.2.3, 169.254.169.254]
    methods: [GET]
"""
)


@pytest.fixture
async def parent(origin_server: TlsServer) -> AsyncIterator[ConnectProxy]:
    async with connect_proxy({"api.openai.com:443": origin_server.port}) as proxy:
        yield proxy


@pytest.fixture
async def behind(
    tmp_path: Path,
    all_output: Path,
    parent: ConnectProxy,
    upstream_tls: UpstreamTls,
    real_keys: dict[str, str],
) -> AsyncIterator[TestDaemon]:
    credentials = tmp_path / "credentials"
    credentials.write_text("daemon:pa55\n")
    credentials.chmod(0o600)
    async with running_daemon(
        all_output / tmp_path.name,
        WITH_LITERALS,
        {f"memory:secret/{name}#api_key": key for name, key in real_keys.items()},
        upstream_ca=upstream_tls.ca,
        connect_to={},
        parent_proxy=f"http://127.0.0.1:{parent.port}",
        parent_proxy_credentials=credentials,
    ) as daemon:
        yield daemon


async def test_requests_leave_through_the_parent_and_the_name_is_still_verified(
    behind: TestDaemon, parent: ConnectProxy, origin_server: TlsServer
) -> None:
    """The parent is asked for the name, with our credentials, and sees TLS; the origin sees the secret."""
    sandbox = await behind.sandbox()
    async with http_client(behind, sandbox) as http:
        for _ in range(2):
            answer = await http.get(
                "https://api.openai.com/v1/models",
                headers={"Authorization": f"Bearer {sandbox.handles['openai']}"},
            )
            assert answer.status_code == 200, answer.text
    assert [seen.genuine for seen in origin_server.seen] == ["openai"] * 2
    asked = (
        "CONNECT api.openai.com:443 HTTP/1.1\r\nHost: api.openai.com:443\r\n"
        "Proxy-Authorization: Basic ZGFlbW9uOnBhNTU=\r\n\r\n"
    )
    assert parent.heads == [asked]


async def test_policy_decides_before_the_parent_is_asked(behind: TestDaemon, parent: ConnectProxy) -> None:
    """A host that no rule names, and an address that must not be reached, never get as far as the parent."""
    sandbox = await behind.sandbox()
    async with http_client(behind, sandbox) as http:
        for url in ("https://10.1.2.3/", "https://169.254.169.254/"):
            assert (await http.get(url)).status_code == 403
        with pytest.raises(httpx.ProxyError, match="403"):
            await http.get("https://other.example/")
    reasons = [record["reason"] for record in behind.decisions() if record["outcome"] == "deny"]
    assert reasons == ["address_refused", "address_refused", "host_not_allowed"]
    assert parent.heads == []


async def test_the_cost_stands_in_the_audit_log(behind: TestDaemon) -> None:
    """Anyone who reads the log learns that addresses are not screened by us."""
    told = [record for record in behind.records() if record.get("what") == "parent_proxy"]
    assert len(told) == 1
    assert "screened by it or by nobody" in told[0]["detail"]


@asynccontextmanager
async def asking(answer: bytes) -> AsyncIterator[Upstream]:
    async with connect_proxy({}, answer=answer) as proxy:
        yield Upstream(
            UpstreamSettings(parent=ParentProxy("127.0.0.1", proxy.port), connect_timeout=0.5),
        )


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "credentials"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "does not allow"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://login.example/\r\n\r\n", "302"),
        (b"HTTP/1.1 200 OK\r\nbroken line\r\n\r\n", "not HTTP/1"),
        (b"HTTP/1.1 200 OK\r\nName : value\r\n\r\n", "not HTTP/1"),
        (b"HTTP/2 200\r\n\r\n", "not HTTP/1"),
        (b"200 OK\r\n\r\n", "not HTTP/1"),
        (b"HTTP/1.1 200 OK\n\n", "closed"),
        (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", "bytes of its own"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", "too long"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, "no end"),
    ],
)
async def test_only_a_plain_yes_makes_a_tunnel(answer: bytes, why: str) -> None:
    """Anything but a well-formed 2xx with nothing after it is a refusal, with a reason for the operator."""
    async with asking(answer) as upstream:
        with pytest.raises(UpstreamRefused, match=why) as refused:
            await upstream.connect("api.openai.com", 443)
    assert refused.value.reason is Reason.UPSTREAM_UNREACHABLE


async def test_a_silent_parent_is_given_up() -> None:
    """The wait for its answer is bounded."""
    async with asking(b"") as upstream:
        with pytest.raises(UpstreamRefused) as refused:
            await upstream.connect("api.openai.com", 443)
    assert refused.value.reason is Reason.UPSTREAM_TIMEOUT


async def test_we_are_not_our_own_parent() -> None:
    """A parent that is one of our listeners would be a loop."""
    upstream = Upstream(
        UpstreamSettings(parse_networks(("127.0.0.0/8",)), parent=ParentProxy("127.0.0.1", 9))
    )
    upstream.own_listeners.add(("127.0.0.1", 9))
    with pytest.raises(UpstreamRefused) as refused:
        await upstream.connect("api.openai.com", 443)
    assert refused.value.reason is Reason.OWN_SURFACE


async def test_credentials_that_others_may_read_are_not_used(
    tmp_path: Path,
) -> None:
    """The connection is refused, and the file's content is in no message."""
    credentials = tmp_path / "credentials"
    credentials.write_text("daemon:pa55\n")
    credentials.chmod(0o644)
    async with connect_proxy({}) as proxy:
        parent = ParentProxy("127.0.0.1", proxy.port, credentials)
        with pytest.raises(UpstreamRefused, match="0600") as refused:
            await Upstream(UpstreamSettings(parent=parent)).connect("api.openai.com", 443)
    assert "pa55" not in str(refused.value)
    assert proxy.heads == []


@pytest.mark.parametrize(
    "url",
    ["proxy.example:3128", "https://proxy.example:3128", "http://u:p@proxy.example:1", "http://p.example"],
)
def test_the_setting_is_a_plain_url(url: str) -> None:
    """No credentials in it, no TLS that is not made, no port that is guessed."""
    with pytest.raises(ValidationError):
        Settings(parent_proxy=url)
