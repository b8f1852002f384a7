"""A stock mitmdump with our script, and the policy that it enforces."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from demo.upstreams.server import TlsServer
from tests.planes.mitmdump import Mitmdump, child_environment, command, running
from tests.ports import free_port
from tests.upstreams import UpstreamTls

POLICY = """
version: 1
owner: tests
credentials:
  openai:
    secret: file:keys/openai#value
    hosts: [api.openai.com]
    inject: {header: Authorization, value: "Bearer {secret}"}
    env: OPENAI_API_KEY
    origins: [socket, bearer]
  anthropic:
    secret: file:keys/anthropic#value
    hosts: [api.anthropic.com]
    inject: {header: X-Api-Key}
    env: ANTHROPIC_API_KEY
  form:
    secret: file:keys/openai#value
    hosts: [upstream.example]
    inject: {body: {field: key, max: 1KiB}}
    env: FORM_KEY
    origins: [bearer]
rules:
  - name: form
    hosts: [upstream.example]
    methods: [POST]
    credentials: [form]
  - name: openai
    hosts: [api.openai.com]
    methods: [GET, POST]
    credentials: [openai]
    websocket: true
  - name: anthropic
    hosts: [api.anthropic.com]
    methods: [GET, POST]
    credentials: [anthropic]
  - name: free
    hosts: [upstream.example]
    methods: [GET]
  - name: private
    hosts: [other.example]
    methods: [GET]
"""
BREAK = """
import coatcheck.request.call, coatcheck.request.exchange
def boom(*_, **__):
    raise RuntimeError("boom")
{0} = boom
"""

type Start = Callable[..., AbstractAsyncContextManager[Mitmdump]]


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "default.yaml"
    file.write_text(POLICY)
    file.chmod(0o644)
    return file


@pytest.fixture
def start(
    tmp_path: Path,
    all_output: Path,
    policy: Path,
    origin_server: TlsServer,
    upstream_tls: UpstreamTls,
    real_keys: dict[str, str],
) -> Start:
    directory = all_output / tmp_path.name
    directory.mkdir(parents=True)
    keys = tmp_path / "secrets/keys"
    keys.mkdir(parents=True)
    keys.parent.chmod(0o700)
    keys.chmod(0o700)
    for name, key in real_keys.items():
        (keys / name).write_text(key)
        (keys / name).chmod(0o600)
    hosts = ("api.openai.com", "api.anthropic.com", "upstream.example")
    environment = child_environment(
        secrets_dir=str(keys.parent),
        allowed_networks=["127.0.0.0/8"],
        connect_to={f"{host}:443": f"127.0.0.1:{origin_server.port}" for host in hosts}
        | {"other.example:443": "10.1.2.3:443"},
    )

    @asynccontextmanager
    async def begin(*, broken: str = "", **changed: str | None) -> AsyncIterator[Mitmdump]:
        port = free_port()
        trusted = {"ssl_verify_upstream_trusted_ca": str(upstream_tls.ca)}
        extra = {}
        if broken:
            (tmp_path / "broken").mkdir()
            (tmp_path / "broken/sitecustomize.py").write_text(BREAK.format(broken))
            extra["PYTHONPATH"] = str(tmp_path / "broken")
        words = command(directory, policy, port, trusted | changed)
        async with running(
            words, environment | extra, directory, policy.with_name("session.env"), port
        ) as started:
            yield started

    return begin


def bearer(mitmdump: Mitmdump) -> dict[str, str]:
    return {"Authorization": f"Bearer {mitmdump.variables['OPENAI_API_KEY']}"}
