"""A handle counts only when we signed exactly this text, for exactly this session and credential."""

import base64
import hmac
import json
from dataclasses import replace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.handle import MAX_CHARS, PREFIX, Claims, HandleKeys, judge, sign, verify
from coatcheck.decision.message import Origin, OriginClass
from coatcheck.decision.policy import Credential, SecretRef
from coatcheck.decision.session import Isolation, Now, Session
from coatcheck.injectors.header import HeaderInjection

KEY = Ed25519PrivateKey.generate()
OTHER_KEY = Ed25519PrivateKey.generate()
KEYS = HandleKeys("k1", {"k1": KEY.public_key()})
CLAIMS = Claims("ses_a", "openai", 1, 1_000, 2_000, "j1")
PAYLOAD = {
    "iss": "coatcheck",
    "sid": "ses_a",
    "cred": "openai",
    "gen": 1,
    "iat": 1_000,
    "exp": 2_000,
    "jti": "j1",
}
HEADER = {"alg": "EdDSA", "kid": "k1", "typ": "cch+jwt"}


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def packed(header: dict[str, Any], payload: Any, key: Ed25519PrivateKey = KEY) -> str:
    """A JWS with any header and payload, its signature genuine."""
    text = payload if isinstance(payload, str) else json.dumps(payload, separators=(",", ":"))
    signing = b64(json.dumps(header, separators=(",", ":")).encode()) + "." + b64(text.encode())
    return PREFIX + signing + "." + b64(key.sign(signing.encode()))


def test_what_was_signed_is_what_verify_says() -> None:
    """Sign and verify are inverse."""
    assert verify(sign(CLAIMS, KEY, "k1"), KEYS) == CLAIMS


def test_the_tampering_table_builds_genuine_handles_when_nothing_is_changed() -> None:
    """`packed` with our own header and payload is accepted, so each refusal below has the stated cause."""
    assert verify(packed(HEADER, PAYLOAD), KEYS) == CLAIMS


@pytest.mark.parametrize(
    "header",
    [
        {**HEADER, "alg": "none"},
        {**HEADER, "alg": "HS256"},
        {**HEADER, "alg": "eddsa"},
        {**HEADER, "kid": "k2"},
        {**HEADER, "kid": "../k1"},
        {**HEADER, "kid": ["k1"]},
        {**HEADER, "typ": "JWT"},
        {**HEADER, "crit": ["exp"]},
        {**HEADER, "b64": False, "crit": ["b64"]},
        {**HEADER, "jwk": {"kty": "OKP"}},
        {**HEADER, "jku": "https://evil.example/keys"},
        {**HEADER, "x": 1},
        {"alg": "EdDSA", "kid": "k1"},
        {"kid": "k1", "typ": "cch+jwt"},
        {"typ": "cch+jwt", "kid": "k1", "alg": "EdDSA"},
        {},
    ],
)
def test_any_header_but_ours_is_refused_though_the_signature_is_genuine(header: dict[str, Any]) -> None:
    """Algorithm, key id, critical extensions and even the order are fixed to the byte."""
    denied = verify(packed(header, PAYLOAD), KEYS)
    assert isinstance(denied, Deny) and denied.reason is Reason.HANDLE_UNKNOWN


@pytest.mark.parametrize(
    "payload",
    [
        {**PAYLOAD, "admin": True},
        {**PAYLOAD, "nbf": 1},
        *({k: v for k, v in PAYLOAD.items() if k != missing} for missing in PAYLOAD),
        {**PAYLOAD, "gen": True},
        {**PAYLOAD, "gen": 1.0},
        {**PAYLOAD, "gen": "1"},
        {**PAYLOAD, "gen": -1},
        {**PAYLOAD, "exp": True},
        {**PAYLOAD, "exp": 2e3},
        {**PAYLOAD, "exp": None},
        {**PAYLOAD, "iat": 2_000},
        {**PAYLOAD, "sid": ""},
        {**PAYLOAD, "sid": ["ses_a"]},
        {**PAYLOAD, "cred": {"a": 1}},
        {**PAYLOAD, "jti": 1},
        {**PAYLOAD, "iss": "someone"},
        {**PAYLOAD, "iss": ["coatcheck"]},
        json.dumps(PAYLOAD)[:-1] + ', "sid": "ses_b"}',
        json.dumps({k: v for k, v in PAYLOAD.items() if k != "jti"})[:-1] + ', "sid": "ses_b"}',
        json.dumps([list(pair) for pair in PAYLOAD.items()]),
        "[" * 400,
        '"text"',
        "null",
        "{}",
        "",
    ],
)
def test_any_payload_but_ours_is_refused_though_the_signature_is_genuine(payload: Any) -> None:
    """Unknown, missing, repeated and wrongly typed claims: a bool is not a generation."""
    denied = verify(packed(HEADER, payload), KEYS)
    assert isinstance(denied, Deny) and denied.reason is Reason.HANDLE_MALFORMED


def test_another_key_under_our_key_id_is_a_forgery_and_an_alarm() -> None:
    """The header names our key; the signature is someone else's."""
    denied = verify(packed(HEADER, PAYLOAD, OTHER_KEY), KEYS)
    assert denied == Deny(Reason.HANDLE_UNKNOWN, "the signature is wrong", alarm=True)


def test_our_public_key_is_no_hmac_secret() -> None:
    """The old confusion of algorithms: HS256 keyed with the public key."""
    public = KEY.public_key()
    for secret in (
        public.public_bytes_raw(),
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    ):
        head = b64(json.dumps({**HEADER, "alg": "HS256"}, separators=(",", ":")).encode())
        signing = head + "." + b64(json.dumps(PAYLOAD).encode())
        forged = PREFIX + signing + "." + b64(hmac.digest(secret, signing.encode(), "sha256"))
        assert isinstance(verify(forged, KEYS), Deny)


def test_a_handle_without_a_signature_is_refused() -> None:
    """alg none in its classic form, with an empty last segment."""
    text = PREFIX + jwt.encode(PAYLOAD, "", algorithm="none", headers={"kid": "k1", "typ": "cch+jwt"})
    assert isinstance(verify(text, KEYS), Deny)


def test_every_truncation_is_refused() -> None:
    """No prefix of a handle is a handle."""
    text = sign(CLAIMS, KEY, "k1")
    assert all(isinstance(verify(text[:length], KEYS), Deny) for length in range(len(text)))


@given(st.data())
def test_no_other_text_is_the_same_handle(data: st.DataObject) -> None:
    """One character changed, put in or taken out anywhere: refused. Base64 offers no second spelling."""
    text = sign(CLAIMS, KEY, "k1")
    at = data.draw(st.integers(0, len(text) - 1))
    char = data.draw(st.sampled_from("ABCDyz019-_.=+/ \n\r\té\x00"))
    drop = data.draw(st.integers(0, 1))
    changed = text[:at] + char + text[at + drop :]
    if changed != text:
        assert isinstance(verify(changed, KEYS), Deny)


def test_the_unused_bits_of_the_last_character_are_not_free() -> None:
    """64 bytes leave four bits over in base64url; decoders ignore them, so we must not."""
    text = sign(CLAIMS, KEY, "k1")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    accepted = [c for c in alphabet if not isinstance(verify(text[:-1] + c, KEYS), Deny)]
    assert accepted == [text[-1]]


@given(st.text(max_size=80))
def test_no_text_makes_verify_fail(text: str) -> None:
    """Whatever a sandbox sends, the answer is a Deny and never an exception."""
    for candidate in (text, PREFIX + text, sign(CLAIMS, KEY, "k1") + text[:1] + "x"):
        assert isinstance(verify(candidate, KEYS), Deny)


def test_a_huge_handle_costs_a_length_check() -> None:
    """Beyond 1,024 characters nothing is decoded."""
    padded = packed(HEADER, {**PAYLOAD, "sid": "s" * 800})
    assert len(padded) > MAX_CHARS
    assert verify(padded, KEYS) == Deny(Reason.HANDLE_MALFORMED, "too long")
    with pytest.raises(ValueError, match="shorter names"):
        sign(replace(CLAIMS, cred="c" * 800), KEY, "k1")


CREDENTIAL = Credential("openai", SecretRef("m", "s", "openai", "k"), (), HeaderInjection("authorization"))
SESSION = Session(
    id="ses_a",
    tenant="t",
    subject="s",
    policy="p",
    origin=Origin(OriginClass.SOCKET, "ses_a"),
    credentials=frozenset({"openai"}),
    isolation=Isolation.NONE,
    generation=1,
    opened_at=1_000,
    expires_at=2_000,
    lease_seconds=120,
    lease_deadline=120,
)


@pytest.mark.parametrize(
    ("session", "credential", "wall", "reason", "alarm"),
    [
        (SESSION, CREDENTIAL, 1_999.9, None, False),
        (SESSION, CREDENTIAL, 2_000.0, Reason.HANDLE_EXPIRED, False),
        (SESSION, CREDENTIAL, 1_000.0, None, False),
        (SESSION, CREDENTIAL, 999.9, Reason.HANDLE_UNKNOWN, True),
        (replace(SESSION, id="ses_b"), CREDENTIAL, 1_500, Reason.HANDLE_STOLEN, True),
        (replace(SESSION, id="ses_b"), CREDENTIAL, 9_999, Reason.HANDLE_STOLEN, True),
        (replace(SESSION, generation=2), CREDENTIAL, 1_500, Reason.HANDLE_STALE, False),
        (
            replace(SESSION, revoked_handles=frozenset({"j1"})),
            CREDENTIAL,
            1_500,
            Reason.HANDLE_REVOKED,
            False,
        ),
        (replace(SESSION, credentials=frozenset()), CREDENTIAL, 1_500, Reason.HANDLE_OUT_OF_SCOPE, False),
        (SESSION, replace(CREDENTIAL, name="github"), 1_500, Reason.HANDLE_MISPLACED, True),
    ],
)
def test_a_genuine_handle_counts_only_for_its_own_session_credential_and_time(
    session: Session, credential: Credential, wall: float, reason: Reason | None, alarm: bool
) -> None:
    """One row for each way in which a genuine handle does not count."""
    denied = judge(CLAIMS, session, credential, Now(wall, 0), {})
    assert (denied.reason, denied.alarm) == (reason, alarm) if denied is not None else reason is None


def test_a_theft_names_both_sessions() -> None:
    """Anyone who reads the alarm must know whose handle it was and who used it."""
    denied = judge(CLAIMS, replace(SESSION, id="ses_b"), CREDENTIAL, Now(1_500, 0), {})
    assert denied is not None and "ses_a" in denied.detail and "ses_b" in denied.detail


@pytest.mark.parametrize("tail", ["=", "==", ".", " ", "\n", "+"])
def test_a_tail_that_base64_would_drop_makes_no_second_spelling(tail: str) -> None:
    """PyJWT takes `=`: a handle revoked by its text's digest would come back with one."""
    text = sign(CLAIMS, KEY, "k1")
    malformed = Deny(Reason.HANDLE_MALFORMED, "not three segments of base64url")
    assert verify(text + tail, KEYS) == malformed
    first, second, third = text.split(".")
    for disguised in (
        f"{first}.{second}=.{third}",
        f"{first}..{third}",
        f"{first}.{second}.",
        f"{first}.{third}",
    ):
        assert verify(disguised, KEYS) == malformed


def test_a_handle_may_be_exactly_as_long_as_the_bound_and_say_zero() -> None:
    """Generation and times may be zero: another handle than one without them."""
    longest = next(
        text
        for text in (_text_of(length) for length in range(400, 700))
        if isinstance(text, str) and len(text) == MAX_CHARS
    )
    assert isinstance(verify(longest, KEYS), Claims)
    zero = replace(CLAIMS, generation=0, issued_at=0)
    assert verify(sign(zero, KEY, "k1"), KEYS) == zero


def _text_of(length: int) -> str | None:
    try:
        return sign(replace(CLAIMS, cred="c" * length), KEY, "k1")
    except ValueError:
        return None


def test_keys_are_known_by_the_one_header_that_we_write() -> None:
    """However they were made: two keys, two headers, and nobody changes them afterwards."""
    given = {"k1": KEY.public_key(), "k2": OTHER_KEY.public_key()}
    keys = HandleKeys("k2", given)
    assert verify(sign(CLAIMS, OTHER_KEY, "k2"), keys) == verify(sign(CLAIMS, KEY, "k1"), keys) == CLAIMS
    del given["k1"]
    assert set(keys.verify) == {"k1", "k2"} and len(keys.by_header) == 2
    assert isinstance(verify(sign(CLAIMS, KEY, "k2"), keys), Deny)
