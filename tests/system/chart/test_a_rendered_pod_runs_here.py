"""A pod as the chart and its webhook make it, run in a network namespace: only its proxy gets out."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from coatcheck.secrets.embedded import EmbeddedVault
from tests.system.chart.helm import Helm
from tests.system.chart.stage import KEY, MODELS, Stage, staged
from tests.system.redirect.world import AGENT_UID, HOST, INTERNET, RESOLVER, rules_of
from tests.upstreams import UpstreamTls

pytestmark = [pytest.mark.needs_debian("nft", "iptables", "ip", "bwrap", "curl")]


@pytest.fixture(scope="module")
def stage(
    helm: Helm, bao: EmbeddedVault, upstream_tls: UpstreamTls, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """Vault verifies the pod's token by the JWKS."""
    with staged(helm, bao, upstream_tls, tmp_path_factory.mktemp("rendered"), login="jwt") as ready:
        yield ready


def test_a_program_is_served_with_a_key_that_the_pod_never_sees(stage: Stage) -> None:
    """curl, told of no proxy: its handle in the header, the real key at the origin."""
    said = stage.shell(f"{MODELS} https://api.openai.com/v1/models")
    assert "gpt-" in said and " 200 " in said, said + stage.running.log("coatcheck-proxy")
    assert stage.origin.stdout is not None
    assert json.loads(stage.origin.stdout.readline())["genuine"] == "openai"
    environment = stage.running.run("agent").stdout  # its own command
    assert "COLOUR=blue" in environment and environment.endswith("blueagent-0")
    assert "OPENAI_API_KEY=" in environment and "SSL_CERT_FILE=/run/coatcheck/ca-bundle.pem" in environment
    assert KEY not in environment


def test_everything_else_is_refused(stage: Stage) -> None:
    """Another host in words; other ports, DNS to others and QUIC by the rules. Nothing was seen outside."""
    said = stage.shell(f"{MODELS} https://elsewhere.example/")
    assert said.endswith(" 403 host_not_allowed"), said
    wanted = (f"tcp {INTERNET} 8080", f"udp {INTERNET} 443", f"udp {INTERNET} 9999", f"ping {INTERNET}")
    came = stage.world.attempts(*wanted, f"tcp {HOST} 9900", uid=AGENT_UID)
    assert "answered" not in came.values()
    assert (stage.world.internet.read(), stage.world.services.read()) == ([], [])


def test_the_session_is_the_pods_by_its_token(stage: Stage) -> None:
    """Tenant and subject as the platform signed them."""
    said = stage.running.run("coatcheck-proxy", "coatcheck", "session", "list", "--json")
    assert said.returncode == 0, said.stderr
    [session] = json.loads(said.stdout)
    assert (session["tenant"], session["subject"]) == ("agents", "pod/agent-0")


def test_the_workload_reaches_nothing_of_the_proxys(stage: Stage) -> None:
    """No token, no state, no socket, no capability, no way to its user, and trust that it cannot write."""
    agent = stage.shell(
        "ls /var/run/secrets /var/lib/coatcheck /etc/coatcheck; id; grep Cap /proc/self/status"
    )
    assert agent.count("No such file or directory") == 3, agent
    assert "uid=1000" in agent and "CapBnd:\t0000000000000000" in agent
    written = stage.shell("touch /run/coatcheck/new; echo mine > /run/coatcheck/ca-bundle.pem")
    assert written.count("Read-only file system") + written.count("Permission denied") == 2, written
    assert "not permitted" in stage.shell("setpriv --reuid 9990 --clear-groups id")
    assert "not permitted" in stage.shell("nft flush ruleset").lower()


def test_the_proxy_runs_as_nobody_with_nothing(stage: Stage) -> None:
    """As the kernel says it of the process that the rendered container is."""
    status = Path(f"/proc/{stage.running.inside('coatcheck-proxy')}/status").read_text()
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert facts["Uid"].split() == ["9990"] * 4 and facts["NoNewPrivs"] == "1"
    assert {facts[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}


def test_when_the_pod_goes_nothing_is_left(stage: Stage) -> None:
    """Last: SIGTERM ends the session and the proxy in order. What it cut off stays cut off until the
    namespace, and with it the rules, is gone."""
    assert rules_of(stage.world.box)
    assert stage.running.stop(signal.SIGTERM) == {"coatcheck-proxy": 0}, stage.running.log("coatcheck-proxy")
    audit = stage.running.directory / "volumes/coatcheck-state/proxy/state/audit/audit.jsonl"
    changes = [each["change"] for each in map(json.loads, audit.read_text().splitlines()) if "change" in each]
    assert changes[-1] == "ended"
    said = stage.shell(f"{MODELS} https://api.openai.com/v1/models")
    assert " 000 " in said
    # As it was between the redirect's end and the proxy's begin: there is no window at a start either.
    without = stage.world.attempts(
        f"tcp {INTERNET} 443", f"udp {RESOLVER} 53", f"tcp {HOST} 9900", uid=AGENT_UID
    )
    assert "answered" not in without.values() and stage.world.internet.read() == []
    of_the_pod = [each for each in Path("/proc").glob("[0-9]*/ns/net") if _same(each, stage)]
    assert [each.parent.parent.name for each in of_the_pod] == [str(stage.world.box.pid)]
    assert KEY not in "".join(each.read_text() for each in stage.running.directory.glob("*.log"))


def _same(link: Path, stage: Stage) -> bool:
    try:
        return link.readlink() == Path(f"/proc/{stage.world.box.pid}/ns/net").readlink()
    except OSError:
        return False
