"""A pod with a sidecar of a fleet (`sidecar.sharedState`): who is on call revokes it at another daemon.

Vault is logged in to by its Kubernetes method, as by default.
"""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coatcheck.client.control import ControlClient, ControlError
from coatcheck.secrets.embedded import EmbeddedVault
from tests.system.chart.helm import Helm
from tests.system.chart.stage import MODELS, SharedState, Stage, staged
from tests.system.chart.test_a_rendered_gateway_serves_here import SECONDS
from tests.system.chart.test_rendered_replicas_on_postgresql_serve_as_one import wait
from tests.system.chart.values import POLICY
from tests.system.fleet.postgres_server import PostgresServer
from tests.upstreams import UpstreamTls

pytestmark = [
    pytest.mark.needs_debian("nft", "iptables", "ip", "bwrap", "curl", "/usr/lib/postgresql"),
]


@contextmanager
def daemon_of_the_fleet(
    directory: Path, database: PostgresServer, shared: SharedState
) -> Iterator[ControlClient]:
    """Another daemon than the pod's, somewhere else, on the same database."""
    directory.mkdir()
    (directory / "policy.yaml").write_text(POLICY)
    for name, content in shared.secret.items():
        (directory / name).touch(0o600)
        (directory / name).write_text(content)
    settings = {
        "STATE_DIR": directory / "state",
        "RUNTIME_DIR": directory / "run",
        "POLICY": directory / "policy.yaml",
        "SHARED_STATE": database.url,
        "SHARED_STATE_KEY": directory / "fleet.key",
        "SHARED_STATE_PASSWORD_FILE": directory / "postgres-password",
        "MAX_SANDBOXES": 0,
    }
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "coatcheck", "serve"],
            env={"PATH": os.environ["PATH"]} | {f"COATCHECK_{name}": str(v) for name, v in settings.items()},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    client = ControlClient(directory / "run/control.sock")

    def answers() -> bool:
        assert process.poll() is None, (directory / "log").read_text()
        try:
            return client.list() is not None
        except ControlError:
            return False

    try:
        wait(answers, directory / "log")
        yield client
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS)


def test_a_pod_is_seen_and_revoked_at_another_daemon_of_its_fleet(
    helm: Helm, bao: EmbeddedVault, upstream_tls: UpstreamTls, tmp_path: Path
) -> None:
    """Its refusals are a revoked session's from then on, and its workload never saw the fleet's key."""
    from tests.system.chart.stage import certificate_of
    from tests.system.fleet.postgres_server import postgres_server
    from tests.system.redirect.world import HOST

    password, key = secrets.token_hex(16), secrets.token_hex(32)
    certificate, ca = certificate_of(HOST)
    with postgres_server(password=password, certificate=certificate) as database:
        shared = SharedState(
            database.port, ca, {"fleet.key": key, "postgres-password": password, "other": "unread"}
        )
        with (
            daemon_of_the_fleet(tmp_path / "on-call", database, shared) as on_call,
            staged(helm, bao, upstream_tls, tmp_path / "pod", shared=shared) as stage,
        ):
            said = models(stage)
            assert " 200 " in said, said + stage.running.log("coatcheck-proxy")
            log = stage.running.directory / "coatcheck-proxy.log"
            wait(lambda: bool(on_call.list()), log)
            [session] = on_call.list()
            assert (session["tenant"], session["subject"]) == ("agents", "pod/agent-0")
            on_call.revoke(session["id"])
            wait(lambda: models(stage).endswith(" 401 session_revoked"), log)
            out_of_reach(stage, key)


def models(stage: Stage) -> str:
    return stage.shell(f"{MODELS} https://api.openai.com/v1/models")


def out_of_reach(stage: Stage, key: str) -> None:
    """The key is a file of the proxy's user alone, on a volume that the workload does not mount."""
    copy = stage.running.directory / "volumes/coatcheck-state/proxy/fleet.key"
    assert copy.read_text() == key
    assert (copy.stat().st_uid, copy.stat().st_mode & 0o777) == (9990, 0o400)
    mounted = stage.running.directory / "volumes/coatcheck-shared"
    assert {each.name for each in mounted.iterdir() if not each.name.startswith("..")} == {
        "fleet.key",
        "postgres-password",
    }
    seen = stage.shell("env; ls /etc/coatcheck-shared /var/lib/coatcheck")
    assert key not in seen and seen.count("No such file or directory") == 2
