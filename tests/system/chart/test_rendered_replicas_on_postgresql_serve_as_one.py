"""Two replicas of the gateway as the chart renders it for shared state, on a real PostgreSQL."""

import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

import httpx
import pytest

from coatcheck.certificates.authority import Authority
from coatcheck.client.control import ControlClient
from tests.planes.platform import ISSUER
from tests.system.chart.cluster import Json
from tests.system.chart.helm import Helm
from tests.system.chart.test_a_rendered_gateway_serves_here import (
    LAUNCHER,
    PLACES,
    SECONDS,
    Gateway,
    asked,
    mapped,
    probed,
    serving,
    start_here,
)
from tests.system.chart.values import Values, given
from tests.upstreams import UpstreamTls

pytestmark = pytest.mark.needs_debian("/usr/lib/postgresql")

SECOND = "127.0.0.2"
"""The second replica's address; the first has 127.0.0.1."""
OWN = PLACES | {"/var/lib/coatcheck": "lib-2", "/run/coatcheck": "run-2"}


def write_secret(directory: Path, password: str) -> None:
    """What gateway.sharedState.secret holds, as a Secret's volume has it."""
    made = directory / "made"
    Authority.create(made)
    shared = directory / "shared"
    shared.mkdir()
    (shared / "fleet.key").write_text(secrets.token_hex(32))
    (shared / "postgres-password").write_text(password)
    for name in ("ca.pem", "ca-key.pem"):
        (shared / name).write_bytes((made / name).read_bytes())
    for each in shared.iterdir():
        each.chmod(0o440)


def run_init(spec: Json, directory: Path, lib: str) -> None:
    """The init container, with its places where the test has them."""
    [container] = spec["initContainers"]
    script = container["args"][0]
    for place, name in (PLACES | {"/var/lib/coatcheck": lib}).items():
        script = script.replace(f"{place}/", f"{directory / name}/")
    (directory / lib).mkdir()
    subprocess.run([*container["command"], script], check=True, timeout=SECONDS)


@contextmanager
def second_replica(spec: Json, directory: Path) -> Iterator[Path]:
    """Its log; everything is the first one's but its address and its volumes."""
    run_init(spec, directory, "lib-2")
    here = {**spec, "containers": [spec["containers"][0]]}
    with (directory / "log-2").open("wb") as log:
        process = start_here(here, directory, log, mapped(spec, directory, OWN, SECOND))
    try:
        yield directory / "log-2"
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0, (directory / "log-2").read_text()


def test_what_one_opens_all_serve_and_what_one_revokes_none_does(
    helm: Helm, upstream_tls: UpstreamTls, tmp_path: Path
) -> None:
    """One CA, one set of sessions: a sandbox may be led to either. Its user has the runtime role."""
    from tests.system.fleet.postgres_server import postgres_server

    password = secrets.token_hex(16)
    specs: list[Json] = []

    def start(spec: Json, directory: Path, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        specs.append(spec)
        write_secret(directory, password)
        run_init(spec, directory, "lib")
        return start_here(spec, directory, log)

    with postgres_server(password=password) as database:

        def shared(values: Values) -> Values:
            url = f"postgresql://coatcheck@127.0.0.1:{database.port}/coatcheck"
            return given(values, gateway={"replicas": 2, "sharedState": {"url": url, "secret": "fleet"}})

        with serving(helm, upstream_tls, start, change=shared) as first:
            directory = first.log.parent
            with second_replica(specs[0], directory) as log:
                client = ControlClient(
                    url=f"https://{SECOND}:{first.control}", token=LAUNCHER, ca_file=first.ca
                )
                second = replace(first, log=log, address=SECOND)
                wait(lambda: probed(second), log)
                serves_as_one(first, second, client)


def serves_as_one(first: Gateway, second: Gateway, at_second: ControlClient) -> None:
    opened = first.client.open_session(
        tenant="agents", subject="agent-0", policy="default", isolation="namespace",
        origin={"class": "token", "value": f"{ISSUER}|pod-a"},
    )  # fmt: skip
    handle, ca = opened["handles"]["openai"]["value"], opened["proxy"]["ca_bundle"]
    session, token = opened["session"]["id"], first.platform.token("pod-a")
    wait(lambda: session in str(at_second.list()), second.log)
    for each in (first, second):
        answer = asked(each, token, handle, ca)
        assert answer.status_code == 200 and "gpt-" in answer.text, each.log.read_text()
    at_second.end(session)
    wait(lambda: refused(first, token, handle, ca), first.log)
    assert refused(second, token, handle, ca)


def refused(gateway: Gateway, token: str, handle: str, ca: str) -> bool:
    try:
        asked(gateway, token, handle, ca)
    except httpx.ProxyError as error:
        return "401" in str(error)
    return False


def wait(true: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
