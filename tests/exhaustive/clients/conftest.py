"""`coatcheck run` in front of stand-ins: whatever a client needs, it has from there."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from demo.upstreams.seen import Ledger
from demo.upstreams.server import TlsServer
from tests.cli.transcript import Said, coatcheck
from tests.upstreams import UpstreamTls

POLICY = """
version: 1
owner: tests
credentials:
  openai:
    secret: memory:secret/openai#api_key
    hosts: [api.openai.com]
    inject: {header: Authorization, value: "Bearer {secret}"}
    env: OPENAI_API_KEY
  npm:
    secret: memory:secret/npm#token
    hosts: [registry.example]
    inject: {header: Authorization, value: "Bearer {secret}"}
    env: NPM_TOKEN
  github:
    secret: memory:secret/github#token
    hosts: [github.com]
    inject: {basic: {username: x-access-token}}
    env: GITHUB_TOKEN
  aws:
    secret: memory:secret/aws#keys
    hosts: [s3.eu-central-1.amazonaws.com]
    inject: {sigv4: {services: [s3], regions: [eu-central-1]}}
rules:
  - name: openai
    hosts: [api.openai.com]
    methods: [GET, POST]
    credentials: [openai]
  - name: scoped packages
    hosts: [registry.example]
    methods: [GET]
    paths: ["/*%2F*", "/*/*/-/*"]
    credentials: [npm]
  - name: git
    hosts: [github.com]
    methods: [GET, POST]
    credentials: [github]
  - name: packages
    hosts: [deb.example]
    methods: [GET]
  - name: s3
    hosts: [s3.eu-central-1.amazonaws.com]
    methods: [GET, HEAD]
    credentials: [aws]
"""


_TARBALL = "https://registry.example/@acme/left/-/left-1.0.0.tgz"
_VERSION = {"name": "@acme/left", "version": "1.0.0", "dist": {"tarball": _TARBALL, "shasum": "0" * 40}}
PACKAGE = {"name": "@acme/left", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": _VERSION}}


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs a client as `coatcheck run -- CLIENT` does, for a user who has nothing else configured."""

    cwd: Path
    settings: dict[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    async def __call__(self, *command: str, **variables: str) -> Said:
        options = [part for each in self.secrets for part in ("--secret", each)]
        return await asyncio.to_thread(
            coatcheck, "run", "--policy", "policy.yaml", *options, "--", *command,
            cwd=self.cwd, env={**self.settings, **variables}, timeout=180,
        )  # fmt: skip

    async def shell(self, script: str, **variables: str) -> Said:
        return await self("sh", "-ec", script, **variables)


@pytest.fixture
async def packages(upstream_tls: UpstreamTls) -> AsyncIterator[TlsServer]:
    """npm's registry, with one scoped package, and Debian's index of nothing."""
    app = web.Application()

    async def answer(request: web.Request) -> web.Response:
        if request.raw_path == "/@acme%2fleft":
            return web.json_response(PACKAGE)
        return web.Response(text="Origin: acme\nSuite: stable\nCodename: stable\nSHA256:\n")

    app.router.add_get("/{path:.*}", answer)
    ledger = Ledger({"npm": "npm_0123456789abcdefABCDEF"})
    async with TlsServer(app, ledger, upstream_tls.certificate, upstream_tls.key) as server:
        yield server


@pytest.fixture
def run(
    tmp_path: Path,
    origin_server: TlsServer,
    git_host: TlsServer,
    packages: TlsServer,
    upstream_tls: UpstreamTls,
    real_keys: dict[str, str],
    git_token: str,
) -> Runner:
    tmp_path.chmod(0o755)
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "policy.yaml").chmod(0o644)
    (tmp_path / "home").mkdir()
    secrets = {"openai": real_keys["openai"], "npm": "npm_0123456789abcdefABCDEF", "github": git_token}
    secrets["aws"] = json.dumps(
        {
            "access_key_id": "AKIAIOSFODNN7EXAMPLE",
            "secret_access_key": "wJalrXUtnFEMI0K7MDENGbPxRfiCYEXAMPLEKEY",
        }
    )
    for name, value in secrets.items():
        (tmp_path / f"{name}.txt").write_text(value)
        (tmp_path / f"{name}.txt").chmod(0o600)
    to = {
        "api.openai.com:443": origin_server.port,
        "github.com:443": git_host.port,
        "registry.example:443": packages.port,
        "deb.example:443": packages.port,
    }
    settings = {
        "HOME": str(tmp_path / "home"),
        "COATCHECK_CONNECT_TO": json.dumps({name: f"127.0.0.1:{port}" for name, port in to.items()}),
        "COATCHECK_UPSTREAM_CA_FILE": str(upstream_tls.ca),
        "COATCHECK_ALLOWED_NETWORKS": '["127.0.0.0/8"]',
    }
    return Runner(tmp_path, settings, tuple(f"{name}={name}.txt" for name in secrets))
