"""When a session ends, one record says what it used and for whom."""

from pathlib import Path

from demo.upstreams.server import TlsServer
from tests.daemon import running_daemon
from tests.planes.wire import http_client
from tests.system.e2e.story import MODELS, bearer, policy
from tests.upstreams import UpstreamTls


async def test_usage(
    place: Path, origin_server: TlsServer, upstream_tls: UpstreamTls, real_keys: dict[str, str]
) -> None:
    """Requests (refused ones too), bytes both ways, running time, subject and tenant; once, at the end."""
    async with running_daemon(
        place,
        policy(),
        {"memory:secret/openai#api_key": real_keys["openai"]},
        upstream_ca=upstream_tls.ca,
        connect_to={"api.openai.com:443": origin_server.port},
    ) as daemon:
        sandbox = await daemon.sandbox(tenant="acme", subject="agent-7")
        async with http_client(daemon, sandbox) as http:
            await http.post("https://api.openai.com/sink", headers=bearer(sandbox), content=b"x" * 70_000)
            await http.get("https://api.openai.com/big?bytes=90000", headers=bearer(sandbox))
            await http.get(MODELS)
            assert [record for record in daemon.records() if record["type"] == "usage"] == []
            daemon.state.end(sandbox.session.id, "test")
        daemon.state.sweep()
        (usage,) = [record for record in daemon.records() if record["type"] == "usage"]
        assert (usage["tenant"], usage["subject"]) == ("acme", "agent-7")
        assert usage["session"] == sandbox.session.id
        assert usage["requests"] == 3
        assert usage["bytes_up"] == 70_000
        assert 90_000 <= usage["bytes_down"] < 91_000
        assert 0 < usage["seconds"] < 60
