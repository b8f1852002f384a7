"""From an agent that nobody knows to a signed policy: observed, learned, replayed, shadowed, in force."""

from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coatcheck.policy import PolicyError, load_policy
from coatcheck.policy.bundle.signed import signed_policies
from coatcheck.policy.learn import draft, learn
from coatcheck.policy.replay import replay_logs
from demo.upstreams.server import TlsServer
from tests.daemon import running_daemon
from tests.planes.wire import http_client
from tests.policy.bundle.bundles import pem, put, signed
from tests.system.e2e.story import MODELS, bearer, policy, reason, until
from tests.upstreams import UpstreamTls

OBSERVE = "observe: {reason: to learn what the agent needs, until: 2099-12-31}\n"
CLAUDE = "https://api.anthropic.com/v1/models"


async def test_the_whole_way(
    place: Path, origin_server: TlsServer, upstream_tls: UpstreamTls, real_keys: dict[str, str]
) -> None:
    """Observed, a host without a rule is reached, and no handle goes there; the draft allows just that; the
    candidate is compared, then in force; an older bundle is not taken any more."""
    key = Ed25519PrivateKey.generate()
    root = put(place / "keys.pem", pem(key))
    secrets = {"memory:secret/openai#api_key": real_keys["openai"]}
    connect = {"api.openai.com:443": origin_server.port, "api.anthropic.com:443": origin_server.port}
    log = place / "state/audit/audit.jsonl"

    async with running_daemon(
        place, policy() + OBSERVE, secrets, upstream_ca=upstream_tls.ca, connect_to=connect,
        policy_observe="agents of a test, without data",
    ) as daemon:  # fmt: skip
        sandbox = await daemon.sandbox()
        async with http_client(daemon, sandbox) as http:
            assert reason(await http.get(MODELS, headers=bearer(sandbox))) == ""
            assert reason(await http.get(CLAUDE)) == ""
            assert reason(await http.get(CLAUDE, headers=bearer(sandbox))) == "handle_wrong_host"
    learned = draft(learn([log]), owner="tests", credentials=policy().encode())
    assert real_keys["openai"] not in log.read_text() + learned
    narrow = load_policy("default", learned.encode())
    assert {str(host) for rule in narrow.rules for host in rule.hosts} == {
        "api.openai.com",
        "api.anthropic.com",
    }
    report = replay_logs([log], {"default": narrow}, whole=True)
    assert {change.value: count for change, count in report.counts.items() if count} == {"rule": 2, "same": 1}

    put(place / "default.yaml", policy().encode())
    candidate = put(place / "candidate.bundle", signed(key, 8, learned.encode()))
    async with running_daemon(
        place, policy(), secrets, upstream_ca=upstream_tls.ca, connect_to=connect,
        shadow_policy=candidate, policy_trust_root=root, bundle=signed(key, 7, policy().encode()),
    ) as daemon:  # fmt: skip
        shadow = daemon.exchange.shadow
        assert shadow is not None

        async def compared() -> bool:
            return shadow.candidates is not None

        await until(compared, bool)
        sandbox = await daemon.sandbox()
        async with http_client(daemon, sandbox) as http:

            async def ask() -> bool:
                try:
                    return reason(await http.get(CLAUDE)) == ""
                except httpx.ProxyError:  # the answer to CONNECT
                    return False

            assert not await ask()
            recorded = [record for record in daemon.records() if record["type"] == "shadow"]
            assert [(record["change"], record["method"]) for record in recorded] == [("allows", "CONNECT")]

            candidate.rename(daemon.settings.policy)
            await until(ask, bool)
            put(daemon.settings.policy, signed(key, 7, policy().encode()))

            async def refused() -> str:
                return daemon.policies.last_refused

            assert "8 was in force already" in await until(refused, bool)
            assert await ask()
    again = signed_policies(root, place / "state")  # as the next daemon on that directory would read it
    assert again is not None
    with pytest.raises(PolicyError, match="8 was in force already"):
        again.read(daemon.settings.policy)
