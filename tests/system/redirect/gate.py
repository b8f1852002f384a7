"""The real daemon in the world's host namespace, in front of the demo's origin, which listens there, too."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coatcheck.client.control import ControlClient, ControlError
from tests.system.e2e.story import policy
from tests.system.redirect.world import BOX, DNS_PORT, HOST, HOST6, PORT, RESOLVER, SECONDS, Namespace, World
from tests.upstreams import UpstreamTls


@dataclass(frozen=True, slots=True)
class Session:
    handle: str = field(repr=False)
    variables: Mapping[str, str] = field(repr=False)
    """What a program inside is given: trust and the handle. No word of a proxy."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Everything that a sandbox's host runs."""

    world: World
    directory: Path
    client: ControlClient
    origin: "subprocess.Popen[str]" = field(repr=False)

    def open_session(self, address: str = BOX) -> Session:
        """For the sandbox that has this source address."""
        opened = self.client.open_session(
            tenant="acme",
            subject=f"agent at {address}",
            policy="default",
            origin={"class": "address", "value": f"transparent|{address}"},
        )
        variables = opened["environment"]
        assert not any("proxy" in name.lower() for name in variables)
        return Session(opened["handles"]["openai"]["value"], variables)

    def run(self, session: Session, *command: str, **variables: str) -> str:
        """A program in the sandbox: what it printed. Its resolver is one of the internet."""
        script = 'mount --bind "$RESOLV" /etc/resolv.conf && exec "$@"'
        inside = ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh")
        resolv = self.directory / "resolv.conf"
        resolv.write_text(f"nameserver {RESOLVER}\noptions timeout:1 attempts:2\n")
        given = {"RESOLV": str(resolv), **session.variables, **variables}
        ran = self.world.box.run(*inside, *command, check=False, **given)
        return ran.stdout + ran.stderr

    def seen(self) -> dict[str, Any]:
        """The next request that reached the origin."""
        assert self.origin.stdout is not None
        seen: dict[str, Any] = json.loads(self.origin.stdout.readline())
        return seen

    def decisions(self) -> list[dict[str, Any]]:
        lines = (self.directory / "state/audit/audit.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if record["type"] == "decision"]


@contextmanager
def gate(world: World, keys: Mapping[str, str], tls: UpstreamTls) -> Iterator[Gate]:
    """Started, and stopped with the block. The rules are for the test to apply."""
    with (
        tempfile.TemporaryDirectory(prefix="cct-") as text,
        _origin(world.host, keys, tls) as (origin, port),
    ):
        directory = Path(text)
        settings = _settings(directory, keys["openai"], tls, port)
        with (directory / "log").open("wb") as log:
            daemon = subprocess.Popen(
                world.host.command(sys.executable, "-m", "coatcheck", "serve"),
                env=settings, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            client = ControlClient(directory / "run/control.sock")
            deadline = time.monotonic() + SECONDS
            while not _ready(client):
                assert daemon.poll() is None and time.monotonic() < deadline, (directory / "log").read_text()
                time.sleep(0.05)
            yield Gate(world, directory, client, origin)
        finally:
            daemon.terminate()
            daemon.wait(SECONDS)


def _ready(client: ControlClient) -> bool:
    try:
        return bool(client.readiness()["ready"])
    except ControlError:
        return False


def _settings(directory: Path, key: str, tls: UpstreamTls, port: int) -> dict[str, str]:
    for each in ("policies", "secrets/openai"):
        (directory / each).mkdir(0o755, parents=True)
    secret = directory / "secrets/openai/key"
    secret.touch(0o600)
    secret.write_text(key)
    rules = directory / "policies/default.yaml"
    rules.write_text(policy(secret="file:openai/key#value"))
    for path in (directory, directory / "policies", rules):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return {
        "COATCHECK_STATE_DIR": str(directory / "state"),
        "COATCHECK_RUNTIME_DIR": str(directory / "run"),
        "COATCHECK_POLICY": str(directory / "policies"),
        "COATCHECK_SECRETS_DIR": str(directory / "secrets"),
        "COATCHECK_UPSTREAM_CA_FILE": str(tls.ca),
        "COATCHECK_ALLOWED_NETWORKS": '["127.0.0.0/8"]',
        "COATCHECK_CONNECT_TO": json.dumps({"api.openai.com:443": f"127.0.0.1:{port}"}),
        "COATCHECK_TRANSPARENT_HOSTS": json.dumps([HOST, HOST6]),
        "COATCHECK_TRANSPARENT_PORT": str(PORT),
        "COATCHECK_TRANSPARENT_TRUST_ADDRESSES": "true",
        "COATCHECK_DNS_PORT": str(DNS_PORT),
        "COATCHECK_DRAIN_SECONDS": "0",
        "PATH": os.environ["PATH"],
    }


@contextmanager
def _origin(
    where: Namespace, keys: Mapping[str, str], tls: UpstreamTls
) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    arguments = ("--certificate", str(tls.certificate), "--key", str(tls.key), "--name", "api.openai.com")
    origin = subprocess.Popen(
        where.command(sys.executable, "-m", "demo.upstreams.origin", *arguments),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert origin.stdin is not None and origin.stdout is not None
        origin.stdin.write(json.dumps(dict(keys)) + "\n")
        origin.stdin.flush()
        yield origin, int(json.loads(origin.stdout.readline())["port"])
    finally:
        origin.kill()
        origin.communicate()
