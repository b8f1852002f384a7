"""The demo's upstreams, with a certificate that the test's clients trust."""

import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trustme

from coatcheck.demo.origin import origin
from coatcheck.demo.server import TlsServer
from tests.known_secrets import known_secret


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Certificate, key, and the CA's certificate, as PEM files; the certificate is for `localhost`."""
    path = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(path / "cert.pem")
    issued.private_key_pem.write_to_path(path / "key.pem")
    authority.cert_pem.write_to_path(path / "ca.pem")
    return path / "cert.pem", path / "key.pem", path / "ca.pem"


@pytest.fixture
def trust(tls: tuple[Path, Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(tls[2]))


@pytest.fixture
def keys() -> dict[str, str]:
    return {
        "openai": known_secret("the demo's OpenAI key"),
        "anthropic": known_secret("the demo's Anthropic key", prefix="sk-ant-"),
    }


@pytest.fixture
async def server(tls: tuple[Path, Path, Path], keys: dict[str, str]) -> AsyncIterator[TlsServer]:
    async with origin(tls[0], tls[1], keys, names=["localhost"], event_gap=0.01) as running:
        yield running


@pytest.fixture
def url(server: TlsServer) -> Callable[[str], str]:
    return lambda path: f"https://localhost:{server.port}{path}"
