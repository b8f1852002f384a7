"""An ID token proves a person to us, now, in answer to this login; and all those that prove nothing."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coatcheck.control.page.id_token import MAX_GROUPS, TOKEN_BYTES, Expected, Identity, key_id, verify
from coatcheck.control.page.openid_refusal import OpenIdRefused
from coatcheck.platform.jwks import parse_jwks
from tests.control.page.provider import CLIENT, Provider

ISSUER = "https://id.example"
NONCE = "n" * 43


@pytest.fixture(scope="module")
def provider() -> Provider:
    made = Provider()
    made.issuer = ISSUER
    return made


def proven(provider: Provider, token: str) -> Identity:
    keys = parse_jwks(json.dumps(provider.jwks()).encode())
    return verify(token, keys[key_id(token)], Expected(ISSUER, CLIENT, NONCE, time.time()))


def at(changed: dict[str, Any]) -> dict[str, Any]:
    """Whole seconds from now as the times that they are: parameters are made long before a test runs."""
    now = int(time.time())
    times = {name: now + changed[name] for name in ("iat", "exp", "nbf") if type(changed.get(name)) is int}
    return changed | times


def refusal(provider: Provider, token: str) -> str:
    with pytest.raises(OpenIdRefused) as refused:
        proven(provider, token)
    return str(refused.value.reason)


def test_a_genuine_token_proves_subject_verified_mail_and_groups(provider: Provider) -> None:
    """Several audiences when we are the authorized party; clocks may differ by half a minute."""
    said: tuple[dict[str, Any], ...] = (
        {},
        {"aud": [CLIENT]},
        {"aud": [CLIENT, "other"], "azp": CLIENT},
        {"iat": 5, "exp": -5},
        {"iat": -5},
    )
    for changed in said:
        person = proven(provider, provider.token(NONCE, groups=["ops", 7, "x" * 300], **at(changed)))
        assert person.proofs == {"subject u-1", "email ada@example.com", "group ops"}
        assert str(person) == "subject u-1, email ada@example.com"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"iss": "https://evil.example"}, "token"),
        ({"iss": ISSUER + "/"}, "token"),
        ({"iss": None}, "token"),
        ({"aud": "another client"}, "audience"),
        ({"aud": ["another client"]}, "audience"),
        ({"aud": [CLIENT, "other"]}, "audience"),
        ({"aud": [CLIENT, "other"], "azp": "other"}, "audience"),
        ({"azp": "other"}, "audience"),
        ({"aud": None}, "token"),
        ({"nonce": "m" * 43}, "token"),
        ({"nonce": None}, "token"),
        ({"nonce": ["n" * 43]}, "token"),
        ({"nonce": "\ud800"}, "token"),
        ({"exp": -3600}, "clock"),
        ({"exp": None}, "token"),
        ({"exp": float("inf")}, "token"),
        ({"nbf": 3600}, "clock"),
        ({"iat": 3600}, "clock"),
        ({"iat": -3600}, "clock"),
        ({"iat": None}, "token"),
        ({"iat": "0"}, "token"),
        ({"sub": None}, "token"),
        ({"sub": ""}, "token"),
        ({"sub": "x" * 256}, "token"),
        ({"sub": 7}, "token"),
    ],
    ids=str,
)
def test_a_token_for_others_of_others_or_of_another_time_proves_nothing(
    provider: Provider, changed: dict[str, Any], reason: str
) -> None:
    """Each is signed by the right key. What it said is in no message."""
    assert refusal(provider, provider.token(**{"nonce": NONCE} | at(changed))) == reason


@pytest.mark.parametrize("verified", [None, False, "true", 1])
def test_mail_that_the_provider_did_not_verify_is_nobodys(provider: Provider, verified: object) -> None:
    """Anybody may write anybody's address into their profile; the subject still counts."""
    token = provider.token(NONCE, email_verified=verified)
    assert proven(provider, token).proofs == {"subject u-1"}


@pytest.mark.parametrize("groups", ["ops", {"ops": 1}, ["ops"] * (MAX_GROUPS + 1), [["ops"]]], ids=type)
def test_groups_are_a_list_of_names(provider: Provider, groups: object) -> None:
    """Anything else is no group: not each letter of a text, and not a list beyond all size."""
    person = proven(provider, provider.token(NONCE, groups=groups))
    assert person.proofs == {"subject u-1", "email ada@example.com"}


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def with_none(claims: dict[str, Any], provider: Provider) -> str:
    return f"{part({'alg': 'none', 'kid': 'first'})}.{part(claims)}."


def under_the_public_key(claims: dict[str, Any], provider: Provider) -> str:
    """HMAC whose key everybody can read: what RFC 8725 2.1 warns of."""
    pem = provider.keys["first"].public_key()
    key = pem.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    head = f"{part({'alg': 'HS256', 'kid': 'first'})}.{part(claims)}"
    mac = hmac.digest(key, head.encode(), hashlib.sha256)
    return f"{head}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def of_another_key(claims: dict[str, Any], provider: Provider) -> str:
    return jwt.encode(claims, ec.generate_private_key(ec.SECP256R1()), "ES256", headers={"kid": "first"})


def changed_afterwards(claims: dict[str, Any], provider: Provider) -> str:
    head, _, signature = provider.sign(claims).split(".")
    return f"{head}.{part(claims | {'sub': 'root'})}.{signature}"


def unsigned(claims: dict[str, Any], provider: Provider) -> str:
    return provider.sign(claims).rpartition(".")[0] + "."


def without_a_key(claims: dict[str, Any], provider: Provider) -> str:
    return jwt.encode(claims, provider.keys["first"], "ES256")


@pytest.mark.parametrize(
    "forge",
    [with_none, under_the_public_key, of_another_key, changed_afterwards, unsigned, without_a_key],
)
def test_a_signature_that_is_not_the_providers_proves_nothing(
    provider: Provider, forge: Callable[[dict[str, Any], Provider], str]
) -> None:
    """The key says which algorithm counts, whatever the token says."""
    claims = jwt.decode(provider.token(NONCE), options={"verify_signature": False})
    assert refusal(provider, forge(claims, provider)) == "token"


@pytest.mark.parametrize("token", ["", "a.b.c", "...", None, 7, "x" * (TOKEN_BYTES + 1), "é.é.é"])
def test_what_is_no_token_is_refused_before_any_key_is_looked_up(token: object) -> None:
    """Also one beyond all size."""
    with pytest.raises(OpenIdRefused, match="token"):
        key_id(token)
