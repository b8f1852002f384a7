"""One daemon, its upstreams and a sandbox, which live through all examples of a property."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.daemon import Sandbox, TestDaemon, running_daemon
from tests.fuzz.counting_origin import CountingOrigin, counting_origin
from tests.planes.attack import eventually
from tests.system.planes.conftest import ORIGIN, RAW_POLICY
from tests.upstreams import UpstreamTls


@dataclass
class World:
    """Everything on the way, in the test's own loop."""

    daemon: TestDaemon
    sandbox: Sandbox
    origin: CountingOrigin
    plain: CountingOrigin
    secret: str
    _read: int = field(default=0)

    async def quiet(self) -> None:
        """Until the daemon has no connection and no call: what it was asked is over."""
        plane = self.daemon.plane
        assert plane is not None
        await eventually(lambda: not plane.connections and not self.daemon.exchange.calls, 60.0)

    def decided(self) -> list[dict[str, object]]:
        """The audit log's decisions since the last call."""
        path = self.daemon.directory.audit / "audit.jsonl"
        with path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        records = [json.loads(line) for line in data.splitlines()]
        return [record for record in records if record["type"] == "decision"]


@pytest.fixture
async def world(
    tmp_path: Path, all_output: Path, upstream_tls: UpstreamTls, real_keys: dict[str, str]
) -> AsyncIterator[World]:
    secrets = {f"memory:secret/{name}#api_key": key for name, key in real_keys.items()}
    async with counting_origin(upstream_tls) as origin, counting_origin(None) as plain:
        hosts = (*ORIGIN, "api.github.com")
        async with running_daemon(
            all_output / tmp_path.name,
            RAW_POLICY,
            secrets,
            upstream_ca=upstream_tls.ca,
            connect_to={f"{host}:443": origin.port for host in hosts} | {"other.example:80": plain.port},
        ) as daemon:
            yield World(daemon, await daemon.sandbox(), origin, plain, real_keys["openai"])
