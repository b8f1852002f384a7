"""A daemon whose control API is reached as callers reach it: over its Unix socket, and TCP with tokens."""

import asyncio
import hashlib
import http.client
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coatcheck.client.control import ControlClient
from demo.upstreams.server import TlsServer
from tests.daemon import TestDaemon, running_daemon
from tests.known_secrets import known_secret
from tests.system.planes.conftest import ORIGIN, POLICY
from tests.upstreams import UpstreamTls

CALLERS = {
    "ci-launcher": {"role": "launcher", "tenants": ["acme"], "policies": ["default"], "isolation": ["none"]},
    "other-launcher": {"role": "launcher", "tenants": ["acme"], "policies": ["*"], "isolation": ["none"]},
    "any-origin": {
        "role": "launcher",
        "tenants": ["*"],
        "policies": ["default"],
        "isolation": ["none", "namespace"],
        "origins": ["socket", "mtls", "token", "address", "bearer"],
    },
    "operator": {"role": "operator", "tenants": ["*"]},
    "acme-operator": {"role": "operator", "tenants": ["acme"]},
    "auditor": {"role": "auditor", "tenants": ["*"]},
    "other-auditor": {"role": "auditor", "tenants": ["globex"]},
}


_PROOFS = ("uid", "certificate_sha256", "certificate_subject", "oidc_subject", "oidc_email", "oidc_group")


def token_of(caller: str) -> str:
    """That caller's bearer token: a secret that the suite's output must not hold."""
    return known_secret(f"control token of {caller}", prefix="cct_")


def grants_toml(callers: Mapping[str, Mapping[str, Any]]) -> str:
    """A grants file in which each caller proves itself by its token, unless it says otherwise."""
    lines: list[str] = []
    for name, entry in callers.items():
        proof = (
            {}
            if any(key in _PROOFS for key in entry)
            else {"token_sha256": hashlib.sha256(token_of(name).encode()).hexdigest()}
        )
        lines += ["[[caller]]", f'name = "{name}"']
        lines += [f"{key} = {json.dumps(value)}" for key, value in ({**proof, **entry}).items()]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = field(repr=False)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        return str(self.json["error"]["reason"])


@dataclass(frozen=True, slots=True)
class Control:
    """The control API as a test's callers see it."""

    daemon: TestDaemon
    grants: Path

    @property
    def address(self) -> tuple[str, int]:
        assert self.daemon.control is not None
        return self.daemon.control.addresses[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.address[1]}"

    @property
    def socket(self) -> Path:
        return self.daemon.settings.control

    @property
    def owner(self) -> ControlClient:
        """As the daemon's own user."""
        return ControlClient(self.socket)

    def client(self, caller: str) -> ControlClient:
        return ControlClient(url=self.url, token=token_of(caller))

    async def ask(
        self,
        method: str,
        path: str,
        *,
        caller: str | None = None,
        body: Any = None,
        raw: bytes | None = None,
        headers: Mapping[str, str | None] | None = None,
    ) -> Answer:
        """One request over TCP, with exactly the headers that a test asks for (None leaves one out)."""

        def call() -> Answer:
            content = raw if raw is not None else json.dumps(body).encode() if body is not None else b""
            sent: dict[str, str | None] = {"Host": f"127.0.0.1:{self.address[1]}"}
            if caller is not None:
                sent["Authorization"] = f"Bearer {token_of(caller)}"
            if content or method == "POST":
                sent |= {"Content-Type": "application/json", "Content-Length": str(len(content))}
            sent |= headers or {}
            connection = http.client.HTTPConnection(*self.address, timeout=10)
            try:
                connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
                for name, value in sent.items():
                    if value is not None:
                        connection.putheader(name, value)
                connection.endheaders(content or None)
                response = connection.getresponse()
                got = {name.lower(): value for name, value in response.getheaders()}
                return Answer(response.status, got, response.read())
            finally:
                connection.close()

        return await asyncio.to_thread(call)

    async def open(self, caller: str = "ci-launcher", **wanted: Any) -> Answer:
        asked = {"tenant": "acme", "subject": "agent", "policy": "default"} | wanted
        return await self.ask("POST", "/v1/sessions", caller=caller, body=asked)

    async def session(self, caller: str = "ci-launcher", **wanted: Any) -> str:
        """The id of a new session."""
        answer = await self.open(caller, **wanted)
        assert answer.status == 201, answer.body
        return str(answer.json["session"]["id"])


@pytest.fixture
def short_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unix sockets have short names: no test's name is in this path."""
    return tmp_path_factory.mktemp("c")


@dataclass(frozen=True, slots=True)
class Ground:
    """What a daemon of these tests stands on."""

    directory: Path
    state: Path
    origin_port: int
    upstream_ca: Path
    real_keys: Mapping[str, str]


@asynccontextmanager
async def running_control(
    ground: Ground, callers: Mapping[str, Mapping[str, Any]], **settings: Any
) -> AsyncIterator[Control]:
    """A daemon with these callers."""
    grants = ground.directory / "grants.toml"
    grants.write_text(grants_toml(callers))
    grants.chmod(0o600)
    secrets = {f"memory:secret/{name}#api_key": key for name, key in ground.real_keys.items()}
    given: dict[str, Any] = {"control_port": 0, "control_grants": grants, "proxy_port": 0}
    async with running_daemon(
        ground.state,
        POLICY,
        secrets,
        upstream_ca=ground.upstream_ca,
        connect_to={f"{host}:443": ground.origin_port for host in ORIGIN},
        **given | settings,
    ) as daemon:
        yield Control(daemon, grants)


@pytest.fixture
def ground(
    short_dir: Path,
    all_output: Path,
    origin_server: TlsServer,
    upstream_tls: UpstreamTls,
    real_keys: dict[str, str],
) -> Ground:
    state = all_output / short_dir.name
    return Ground(short_dir, state, origin_server.port, upstream_tls.ca, real_keys)


@pytest.fixture
async def control(ground: Ground, request: pytest.FixtureRequest) -> AsyncIterator[Control]:
    """A daemon with CALLERS. Indirect parameters are more settings."""
    async with running_control(ground, CALLERS, **getattr(request, "param", {})) as running:
        yield running
