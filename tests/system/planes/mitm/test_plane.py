"""The plane, end to end in one process: real TLS on both sides, a real origin."""

import logging

import httpx
import pytest

from demo.upstreams.server import TlsServer
from tests.daemon import Sandbox, TestDaemon
from tests.planes.attack import nothing_is_left
from tests.planes.wire import http_client, tunnel, wire


async def test_the_origin_sees_the_secret_and_the_sandbox_does_not(
    daemon: TestDaemon, sandbox: Sandbox, origin_server: TlsServer, real_keys: dict[str, str]
) -> None:
    """A handle goes in, the real key comes out, and the echo of it is masked."""
    async with http_client(daemon, sandbox) as http:
        for _ in range(3):
            answer = await http.get(
                "https://api.openai.com/v1/models",
                headers={"Authorization": f"Bearer {sandbox.handles['openai']}"},
            )
            assert answer.status_code == 200, answer.text
    assert [seen.genuine for seen in origin_server.seen] == ["openai"] * 3
    assert [record["outcome"] for record in daemon.decisions()] == ["inject"] * 3


async def test_what_no_rule_allows_does_not_leave(
    daemon: TestDaemon, sandbox: Sandbox, origin_server: TlsServer
) -> None:
    """A host that no rule names is refused at CONNECT."""
    async with http_client(daemon, sandbox) as http:
        with pytest.raises(httpx.ProxyError, match="403"):
            await http.get("https://other.example/")
    assert not origin_server.seen
    assert daemon.decisions()[-1]["reason"] == "host_not_allowed"


@pytest.mark.parametrize("in_tls", [False, True])
async def test_a_protocol_that_is_refused_is_no_failure_of_ours(
    daemon: TestDaemon, sandbox: Sandbox, caplog: pytest.LogCaptureFixture, in_tls: bool
) -> None:
    """Else a sandbox could raise the alarm for failures, and fill the log with tracebacks, at will."""
    assert daemon.plane is not None
    with caplog.at_level(logging.ERROR, "coatcheck"):
        async with tunnel(daemon, sandbox) if in_tls else wire(sandbox) as raw:
            await raw.send(b"\x16\3\1\0\5\1\0\0\1\0" if in_tls else b"\0\1\2\3")
            assert await raw.rest() == b""
    assert daemon.decisions()[-1]["reason"] == "protocol_refused"
    assert daemon.plane.failures == 0
    assert not [record for record in caplog.records if record.exc_info]
    await nothing_is_left(daemon)


async def test_no_other_user_comes_to_a_sessions_socket(daemon: TestDaemon) -> None:
    """What reaches it *is* the session: its directory is the daemon's alone, trust files are not."""
    assert daemon.listeners is not None
    sandbox = await daemon.sandbox()
    path = await daemon.listeners.open_unix(sandbox.session.id)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert daemon.trust.ca.parent.stat().st_mode & 0o777 == 0o755
    assert daemon.settings.runtime.stat().st_mode & 0o777 == 0o711
