"""A pytest plugin: the demo's upstreams as the tests use them, behind certificates of a throw-away CA."""

import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from demo.upstreams.git_server import git_server, make_repository
from demo.upstreams.origin import origin
from demo.upstreams.server import TlsServer
from tests import debian
from tests.known_secrets import known_secret

NAMES = (
    "localhost",
    "api.openai.com",
    "api.anthropic.com",
    "github.com",
    "api.github.com",
    "upstream.example",
    "other.example",
)
"""What the origin and the git host are. None is looked up: a test says where each name leads."""

AWS_NAMES = (
    "s3.eu-central-1.amazonaws.com",
    "*.s3.eu-central-1.amazonaws.com",
    "sqs.eu-central-1.amazonaws.com",
)
"""The certificate is for these, too (tests/system/e2e/aws_origin)."""
PACKAGE_NAMES = ("registry.example", "deb.example")
"""The same (tests/exhaustive/clients)."""


@dataclass(frozen=True, slots=True)
class UpstreamTls:
    """PEM files: a certificate for all names and 127.0.0.1, its key, and the CA that clients must trust."""

    certificate: Path
    key: Path
    ca: Path

    def trust(self) -> ssl.SSLContext:
        """A client's context that trusts this CA and nothing else."""
        return ssl.create_default_context(cafile=str(self.ca))


@pytest.fixture(scope="session")
def upstream_tls(tmp_path_factory: pytest.TempPathFactory) -> UpstreamTls:
    path = tmp_path_factory.mktemp("upstream-tls")
    files = UpstreamTls(path / "cert.pem", path / "key.pem", path / "ca.pem")
    authority = trustme.CA()
    issued = authority.issue_cert(*NAMES, *AWS_NAMES, *PACKAGE_NAMES, "127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(files.certificate)
    issued.private_key_pem.write_to_path(files.key)
    authority.cert_pem.write_to_path(files.ca)
    return files


@pytest.fixture
def real_keys() -> dict[str, str]:
    """The only keys that `origin_server` takes."""
    return {
        "openai": known_secret("the origin's OpenAI key", prefix="sk-proj-"),
        "anthropic": known_secret("the origin's Anthropic key", prefix="sk-ant-"),
    }


@pytest.fixture
async def origin_server(upstream_tls: UpstreamTls, real_keys: dict[str, str]) -> AsyncIterator[TlsServer]:
    """`demo.upstreams.origin` on 127.0.0.1:`.port`, for all NAMES; `.seen` tells what arrived."""
    async with origin(
        upstream_tls.certificate, upstream_tls.key, real_keys, names=NAMES, event_gap=0.01
    ) as running:
        yield running


@pytest.fixture
def git_token() -> str:
    """The only token that `git_host` takes."""
    return known_secret("the git host's token", prefix="ghp_", length=36)


@pytest.fixture
async def git_host(upstream_tls: UpstreamTls, tmp_path: Path, git_token: str) -> AsyncIterator[TlsServer]:
    """`demo.upstreams.git_server` on 127.0.0.1:`.port`, with the private repository /private.git."""
    debian.need("git")
    repository = tmp_path / "upstream/private.git"
    repository.parent.mkdir()
    make_repository(repository, {"README": "private\n", "src/main.c": "int main(void) { return 0; }\n"})
    async with git_server(
        upstream_tls.certificate, upstream_tls.key, repository, git_token, names=NAMES
    ) as running:
        yield running
