"""The provider is read over verified TLS, within bounds, and no more often than need be."""

import time
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import jwt
import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from coatcheck.control.page import openid_provider
from coatcheck.control.page.id_token import Expected
from coatcheck.control.page.openid_provider import (
    FRESH_SECONDS,
    MAX_BYTES,
    PAUSE_SECONDS,
    Grant,
    OpenIdProvider,
)
from coatcheck.control.page.openid_refusal import OpenIdRefused
from coatcheck.settings.page import OidcClient
from tests.control.page.provider import CLIENT, Break, Provider
from tests.control.page.test_logins import Clock
from tests.upstreams import UpstreamTls

BACK = "http://127.0.0.1:8750/page/oidc/callback"
VERIFIER = "v" * 43
CHALLENGE = "7w_YNF9DSfIdPf_pRjSq646_kPr-2-o9NAl16JGghdM"
NONCE = "n" * 43


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def reader(
    provider: Provider, upstream_tls: UpstreamTls, clock: Clock
) -> AsyncIterator[OpenIdProvider]:
    made = OpenIdProvider(OidcClient(provider.issuer, CLIENT, None, upstream_tls.ca), clock)
    yield made
    await made.close()


async def person(
    reader: OpenIdProvider, provider: Provider, verifier: str = VERIFIER, code: str = "c"
) -> str:
    provider.codes["c"] = {"nonce": NONCE, "redirect_uri": BACK, "code_challenge": CHALLENGE}
    return str(
        await reader.person(
            Grant(code, BACK, verifier), Expected(provider.issuer, CLIENT, NONCE, time.time())
        )
    )


async def refusal(reader: OpenIdProvider, provider: Provider, **more: str) -> str:
    with pytest.raises(OpenIdRefused) as refused:
        await person(reader, provider, **more)
    return str(refused.value.reason)


async def test_a_code_becomes_a_person(reader: OpenIdProvider, provider: Provider) -> None:
    """Discovery and keys are read once for several logins; signed by EC or RSA."""
    provider.keys["rsa"] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    for signing in ("first", "rsa"):
        provider.signing = signing
        assert await person(reader, provider) == "subject u-1, email ada@example.com"
    assert [each for each in provider.asked if each.startswith("GET")] == [
        "GET /.well-known/openid-configuration",
        "GET /keys",
    ]


async def test_a_code_counts_once_and_only_with_its_verifier(
    reader: OpenIdProvider, provider: Provider
) -> None:
    """Anyone who sees a code has not what it was begun with (PKCE)."""
    assert await refusal(reader, provider, verifier="w" * 43) == "code"
    assert await person(reader, provider)
    assert await refusal(reader, provider, code="gone") == "code"


@pytest.mark.parametrize("way", ["client_secret_basic", "client_secret_post"])
async def test_a_client_with_a_secret_shows_it_as_the_provider_wants_it(
    provider: Provider, upstream_tls: UpstreamTls, tmp_path: Path, way: str
) -> None:
    """It is read anew for each login; one that others may read is not used."""
    provider.secret, file = "s:e c+r%t", tmp_path / "secret"
    provider.document = {"token_endpoint_auth_methods_supported": [way]}
    reader = OpenIdProvider(OidcClient(provider.issuer, CLIENT, file, upstream_tls.ca))
    assert await refusal(reader, provider) == "client"
    file.write_text("wrong\n")
    file.chmod(0o600)
    assert await refusal(reader, provider) == "client"
    file.write_text("s:e c+r%t\n")
    assert await person(reader, provider)
    file.chmod(0o644)
    assert await refusal(reader, provider) == "client"
    await reader.close()


async def test_a_new_key_is_found_and_an_old_one_dies(
    reader: OpenIdProvider, provider: Provider, clock: Clock
) -> None:
    """An unknown key makes us look once in PAUSE_SECONDS; one that was taken away dies with FRESH_SECONDS."""
    assert await person(reader, provider)
    provider.keys["second"] = ec.generate_private_key(ec.SECP256R1())
    provider.signing = "second"
    assert await refusal(reader, provider) == "token"
    clock.at += PAUSE_SECONDS
    assert await person(reader, provider)
    stolen = provider.keys.pop("first")
    provider.signing = "second"
    assert await person(reader, provider)
    clock.at += FRESH_SECONDS
    provider.forge = lambda claims: jwt.encode(claims, stolen, "ES256", headers={"kid": "first"})
    assert await refusal(reader, provider) == "token"
    count = provider.asked.count("GET /keys")
    for _ in range(3):
        assert await refusal(reader, provider) == "token"
    assert provider.asked.count("GET /keys") == count


def huge(handler: BaseHTTPRequestHandler) -> bool:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(MAX_BYTES // 1024 + 64):
        handler.wfile.write(b" " * 1024)
    return True


def dripping(handler: BaseHTTPRequestHandler) -> bool:
    """Until the client has had enough."""
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.05)


def elsewhere(handler: BaseHTTPRequestHandler) -> bool:
    handler.send_response(302)
    handler.send_header("Location", "/elsewhere")
    handler.send_header("Content-Length", "0")
    handler.end_headers()
    return True


def nonsense(handler: BaseHTTPRequestHandler) -> bool:
    handler.send_response(200)
    handler.send_header("Content-Length", "2")
    handler.end_headers()
    handler.wfile.write(b"[]")
    return True


def failing(handler: BaseHTTPRequestHandler) -> bool:
    handler.send_error(500)
    return True


@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/keys", "/token"])
@pytest.mark.parametrize("instead", [huge, dripping, elsewhere, nonsense, failing])
async def test_a_provider_that_misbehaves_ends_the_login_and_nothing_else(
    reader: OpenIdProvider, provider: Provider, monkeypatch: pytest.MonkeyPatch, path: str, instead: Break
) -> None:
    """Slow, huge, leading elsewhere, or saying what is no answer. No redirect is followed."""
    if instead is dripping:
        monkeypatch.setattr(openid_provider, "SECONDS", 1.0)
    provider.breaks[path] = instead
    assert await refusal(reader, provider) == "provider"
    assert not any("elsewhere" in each for each in provider.asked)


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://localhost/token"},
        {"jwks_uri": None},
        {"authorization_endpoint": "javascript:alert(1)//"},
        {"authorization_endpoint": "https://user@localhost/"},
        {"authorization_endpoint": "https://localhost/#here"},
    ],
    ids=str,
)
async def test_a_discovery_document_of_others_or_in_the_clear_is_refused(
    reader: OpenIdProvider, provider: Provider, document: dict[str, object], clock: Clock
) -> None:
    """And asked for again only after a pause, however many people press the button."""
    provider.document = document
    for _ in range(3):
        with pytest.raises(OpenIdRefused, match="provider"):
            await reader.discovery()
    assert len(provider.asked) == 1
    provider.document = {"scopes_supported": ["openid"]}
    clock.at += PAUSE_SECONDS
    assert (await reader.discovery()).scopes == "openid"


@pytest.fixture
def other_ca(tmp_path: Path) -> Path:
    """Of somebody else."""
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return tmp_path / "ca.pem"


async def test_nobody_else_is_the_provider(provider: Provider, other_ca: Path) -> None:
    """TLS is verified: a certificate of another CA, and a port where nobody listens."""
    for issuer in (provider.issuer, "https://localhost:1"):
        reader = OpenIdProvider(OidcClient(issuer, CLIENT, None, other_ca))
        with pytest.raises(OpenIdRefused, match="provider"):
            await reader.discovery()
        await reader.close()
    assert provider.asked == []
