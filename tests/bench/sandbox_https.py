"""HTTPS from inside a guest, through the mux, against the same client on the host, through the same proxy.

curl in both places: one connection, 1 KiB answers one after the other, then one answer of 16 MiB. What
differs is where curl's TLS and the guest's kernel run (emulated, under TCG), and the way through the mux;
how fast the mux alone is shows a command's output.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coatcheck.client.control import ControlClient, ControlError
from coatcheck.client.sandbox.blocking import BlockingClient
from coatcheck.platform.private_files import write_atomically
from tests.bench import world
from tests.bench.origin import LARGE, running_origin

HOST = world.HOSTS[0]
REQUESTS = 150
POLICY = f"""
version: 1
owner: bench
credentials:
  openai:
    secret: file:bench/openai#api_key
    hosts: [{HOST}]
    inject: {{header: Authorization, value: "Bearer {{secret}}"}}
    env: OPENAI_API_KEY
rules:
  - {{name: all, hosts: [{HOST}], methods: [GET], credentials: [openai]}}
"""
CURL = 'curl -sS --fail -H "Authorization: Bearer $OPENAI_API_KEY" -w "%{time_total}\\n" -o /dev/null '
SMALL = f'{CURL} "https://{HOST}/?n=[0-{REQUESTS}]"'
BIG = f"{CURL} https://{HOST}/?1 https://{HOST}/large -o /dev/null"


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one client."""

    requests_per_second: float
    mib_per_second: float


OUTPUT = 48
"""MiB that a command writes, below what one command may."""


@contextlib.contextmanager
def daemon(directory: Path, **more: str) -> Iterator[Path]:
    """`coatcheck serve` as shipped, with a secret in a file; its control socket. `more`: settings."""
    with running_origin(directory / "origin") as origin:
        (directory / "origin/large").write_bytes(os.urandom(LARGE))
        secrets = directory / "secrets"
        (secrets / "bench").mkdir(mode=0o700, parents=True)
        write_atomically(
            secrets / "bench/openai", b'{"api_key": "real-key-of-the-bench-0123456789"}', mode=0o600
        )
        (directory / "policy.yaml").write_text(POLICY)
        control = directory / "run/control.sock"
        settings: Mapping[str, str] = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": os.environ.get("HOME", "/"),
            "COATCHECK_STATE_DIR": str(directory / "state"),
            "COATCHECK_RUNTIME_DIR": str(directory / "run"),
            "COATCHECK_POLICY": str(directory / "policy.yaml"),
            "COATCHECK_SECRETS_DIR": str(secrets),
            "COATCHECK_UPSTREAM_CA_FILE": str(origin.ca),
            "COATCHECK_ALLOWED_NETWORKS": '["127.0.0.0/8"]',
            "COATCHECK_CONNECT_TO": f'{{"{HOST}:443": "127.0.0.1:{origin.address[1]}"}}',
        } | {f"COATCHECK_{name.upper()}": value for name, value in more.items()}
        with (directory / "daemon.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "coatcheck", "serve"], env=settings, stdout=log, stderr=log
            )
        try:
            until = time.monotonic() + 60
            while not _answers(control):
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"no daemon: {(directory / 'daemon.log').read_text()[-2000:]}")
                time.sleep(0.1)
            yield control
        finally:
            process.terminate()
            process.wait(30)


def on_the_host(control: Path) -> Speed:
    """curl beside the daemon, with a session's listener of its own."""
    client = ControlClient(control)
    opened = client.open_session(tenant="bench", subject="host", policy="policy", listen="tcp")
    environment = {"PATH": os.environ.get("PATH", os.defpath)} | opened["environment"]

    def run(command: str) -> str:
        done = subprocess.run(
            ["sh", "-c", command], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    try:
        return _speed(run(SMALL), run(BIG))
    finally:
        client.end(opened["session"]["id"])


def in_a_guest(control: Path) -> tuple[Speed, float]:
    """curl in a microVM of that daemon; and MiB a second of a command's output, without TLS."""
    wanted: dict[str, Any] = {"tenant": "bench", "subject": "guest", "policy": "policy", "backend": "microvm"}
    with BlockingClient(control) as client, client.create(**wanted) as sandbox:

        def run(command: str) -> str:
            done = sandbox.run(["sh", "-c", command])
            if done.exit_code:
                raise RuntimeError(done.stderr.decode(errors="replace"))
            return done.stdout.decode()

        speed = _speed(run(SMALL), run(BIG))
        began = time.perf_counter()
        run(f"head -c {OUTPUT}M /dev/zero")
        return speed, OUTPUT / (time.perf_counter() - began)


def _speed(small: str, large: str) -> Speed:
    """The first transfer of each has the handshakes."""
    times = [float(line) for line in small.split()][1:]
    return Speed(len(times) / sum(times), LARGE / (1 << 20) / float(large.split()[1]))


def _answers(control: Path) -> bool:
    try:
        ControlClient(control).readiness()
    except ControlError:
        return False
    return True
