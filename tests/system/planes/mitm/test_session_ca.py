"""A CA a session: what one sandbox trusts is worth nothing to another."""

import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509

from coatcheck.planes.mitm.session_ca import SessionCas
from demo.upstreams.server import TlsServer
from tests.daemon import Sandbox, TestDaemon, running_daemon
from tests.system.planes.conftest import POLICY
from tests.upstreams import UpstreamTls


@pytest.fixture
def wanted(
    tmp_path: Path,
    all_output: Path,
    origin_server: TlsServer,
    upstream_tls: UpstreamTls,
    real_keys: dict[str, str],
) -> dict[str, Any]:
    return {
        "directory": all_output / tmp_path.name,
        "policy": POLICY,
        "secrets": {f"memory:secret/{name}#api_key": key for name, key in real_keys.items()},
        "upstream_ca": upstream_tls.ca,
        "connect_to": {"api.openai.com:443": origin_server.port},
        "session_ca": True,
    }


@pytest.fixture
async def daemon(wanted: dict[str, Any]) -> AsyncIterator[TestDaemon]:
    async with running_daemon(**wanted) as running:
        yield running


async def asked(trust: Path, sandbox: Sandbox) -> int:
    context = ssl.create_default_context(cafile=str(trust))
    headers = {"Authorization": f"Bearer {sandbox.handles['openai']}"}
    async with httpx.AsyncClient(proxy=sandbox.proxy, verify=context) as http:
        return (await http.get("https://api.openai.com/v1/models", headers=headers)).status_code


async def test_each_session_trusts_its_own_ca_only(daemon: TestDaemon) -> None:
    """Its own bundle works; another session's and the daemon's do not."""
    mine, theirs = await daemon.sandbox(), await daemon.sandbox()
    trust = daemon.trust_for(mine.session.id)
    assert await asked(trust.ca, mine) == 200
    assert await asked(trust.bundle, mine) == 200
    for other in (daemon.trust_for(theirs.session.id).ca, daemon.trust.ca):
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await asked(other, mine)
    assert await asked(daemon.trust_for(theirs.session.id).ca, theirs) == 200


async def test_a_sessions_ca_ends_with_it(daemon: TestDaemon) -> None:
    """Revoked: its files are gone, and so is the key."""
    sandbox = await daemon.sandbox()
    trust = daemon.trust_for(sandbox.session.id)
    daemon.state.revoke(sandbox.session.id, "test")
    daemon.sessions_over((sandbox.session.id,))
    assert not trust.ca.exists()
    assert daemon.trust_for(sandbox.session.id) == daemon.trust
    assert daemon.session_cas is not None
    assert daemon.session_cas.tls(sandbox.session.id) is None


async def test_without_its_ca_a_session_gets_no_certificate_of_the_daemons(daemon: TestDaemon) -> None:
    """Should the CA be missing, the connection is refused, not answered with another trust."""
    sandbox = await daemon.sandbox()
    assert daemon.session_cas is not None
    daemon.session_cas.close(sandbox.session.id)
    with pytest.raises(httpx.ProxyError, match="503"):  # told before a tunnel in which nothing could be
        await asked(daemon.trust.ca, sandbox)
    assert daemon.decisions()[-1]["reason"] == "internal_error"


async def test_after_a_restart_the_old_ca_is_worth_nothing(wanted: dict[str, Any], tmp_path: Path) -> None:
    """The key was in memory only: who holds the old CA refuses us, who reads the files anew goes on."""
    kept = tmp_path / "kept.pem"
    async with running_daemon(**wanted) as first:
        sandbox = await first.sandbox()
        kept.write_bytes(first.trust_for(sandbox.session.id).ca.read_bytes())
        assert await asked(kept, sandbox) == 200
    async with running_daemon(**wanted) as second:
        assert second.listeners is not None
        if second.listeners.endpoint(sandbox.session.id) is None:
            await second.listeners.open_tcp(sandbox.session.id, sandbox.address[1])
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await asked(kept, sandbox)
        assert await asked(second.trust_for(sandbox.session.id).ca, sandbox) == 200


async def test_files_that_a_killed_daemon_left_are_removed(tmp_path: Path) -> None:
    """They vouch for nothing any more; what is not a session's stays."""
    cas = SessionCas(tmp_path, timedelta(hours=1))
    await cas.open("ses_0")
    await cas.open("ses_1")
    (tmp_path / "ca-bundle.pem").write_text("the daemon's")
    files = cas.trust("ses_1")
    assert files is not None
    authority = x509.load_pem_x509_certificate(files.ca.read_bytes())
    assert "ses_1" in authority.subject.rfc4514_string()
    again = SessionCas(tmp_path, timedelta(hours=1))
    assert [path.name for path in tmp_path.iterdir()] == ["ca-bundle.pem"]
    assert again.trust("ses_1") is None
