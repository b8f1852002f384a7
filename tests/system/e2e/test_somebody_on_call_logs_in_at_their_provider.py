"""A person with an account at an OpenID provider, in a real Chromium: logs in there, and watches here."""

import asyncio
import base64
import hashlib
from collections.abc import Iterator

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.browser import Person, chromium
from tests.control.page.provider import Provider
from tests.system.control.conftest import CALLERS, Control, grants_toml, ground, short_dir
from tests.system.control.page.conftest import BY_OIDC, oidc, provider
from tests.upstreams import UpstreamTls

__all__ = ["ground", "oidc", "provider", "short_dir"]

pytestmark = pytest.mark.needs_debian("chromedriver")


@pytest.fixture
def person(upstream_tls: UpstreamTls) -> Iterator[Person]:
    """A browser that trusts the provider's certificate and, as every other, has nothing to complain about."""
    key = x509.load_pem_x509_certificate(upstream_tls.certificate.read_bytes()).public_key()
    digest = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
    trusting = f"--ignore-certificate-errors-spki-list={base64.b64encode(digest).decode()}"
    with chromium(trusting) as driver:
        yield Person(driver)


async def test_a_login_at_the_provider_ends_with_its_entry_in_the_grants(
    person: Person, oidc: Control, provider: Provider
) -> None:
    """Refused in plain words while nobody knows them, let in with their entry, logged out without it."""

    def refused() -> None:
        provider.person = {"sub": "stranger"}
        person.open(f"{oidc.url}/page/")
        person.reads("#oidc", f"Log in with {provider.issuer.removeprefix('https://')}")
        person.click("#oidc")
        person.reads("#login-problem", "the daemon's grants file does not list you as a caller")
        assert person.run("return location.href") == f"{oidc.url}/page/"

    def let_in() -> None:
        provider.person = {"sub": "u-1", "email": "ada@example.com", "email_verified": True}
        person.click("#oidc")
        person.find("#link-form")
        assert person.run("return location.hash + location.search + document.cookie") == ""
        assert not any(each.is_displayed() for each in person.all("#oidc, #token"))
        person.click("#link-form button")
        person.reads("#name", "ada · operator · acme")
        person.reads("#sessions", "No sandbox has a session")
        person.browser.refresh()
        person.reads("#name", "ada · operator · acme")

    def take_away() -> None:
        oidc.grants.write_text(grants_toml({**CALLERS, "grace": BY_OIDC["grace"]}))
        assert oidc.daemon.control is not None and oidc.daemon.control.reload() is None
        person.reads("#login-problem", "Log in again")
        person.find("#token")
        person.complaints()  # the browser's own line about the 401, if the page asked at that moment
        person.click("#oidc")
        person.reads("#login-problem", "the daemon's grants file does not list you as a caller")

    for part in (refused, let_in, take_away):
        await asyncio.to_thread(part)
    assert person.complaints() == []


async def test_a_link_to_the_callback_logs_nobody_in(
    person: Person, oidc: Control, provider: Provider
) -> None:
    """Somebody else's code and state, in this browser, led here by another site: a refusal, in words."""

    def story() -> None:
        person.open(f"{provider.issuer}/keys")
        there = f"{oidc.url}/page/oidc/callback?code=theirs&state={'s' * 43}"
        person.run("location.assign(arguments[0])", there)
        person.reads("#login-problem", "this login was not begun in this browser")
        person.find("#token")

    await asyncio.to_thread(story)
    assert person.complaints() == []
