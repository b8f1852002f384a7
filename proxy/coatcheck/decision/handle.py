"""What a handle is: its grammar, its signature, and whether it counts for this session now.

A handle is `cch_` + a JWS in compact form (RFC 7515) signed with Ed25519. Everything that could be
read in two ways is refused: the header must be byte for byte one that we write (so `alg`, `crit`,
`jwk` and `kid` tricks have nothing to act on), the payload must hold exactly our claims with exactly
our types, and each segment must be the one canonical base64url text of its bytes.

Nothing here reads a clock: `verify` says whether a handle is genuine, `judge` whether it counts.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from jwt.api_jws import PyJWS
from jwt.exceptions import PyJWTError
from jwt.utils import base64url_encode

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.policy import Credential
from coatcheck.decision.session import Now, Session

PREFIX: Final = "cch_"
MAX_CHARS: Final = 1024
"""A handle has about 330 characters; a longer text costs us nothing but a length check."""
BASE64URL: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
ISSUER: Final = "coatcheck"
_ALGORITHM: Final = "EdDSA"
_TYPE: Final = "cch+jwt"
_JWS: Final = PyJWS(algorithms=[_ALGORITHM])
_STRING_CLAIMS: Final = ("sid", "cred", "jti")
_NUMBER_CLAIMS: Final = ("gen", "iat", "exp")
_CLAIMS: Final = frozenset({"iss", *_STRING_CLAIMS, *_NUMBER_CLAIMS})


@dataclass(frozen=True, slots=True)
class Claims:
    """What a genuine handle says. Times are whole seconds of Unix time."""

    sid: str
    cred: str
    generation: int
    issued_at: int
    expires_at: int
    jti: str
    """The handle's id, for revocation and audit."""


def _header(kid: str) -> str:
    """The only header that we write, and therefore accept, for key `kid`."""
    header = {"alg": _ALGORITHM, "kid": kid, "typ": _TYPE}
    return base64url_encode(json.dumps(header, separators=(",", ":")).encode()).decode()


@dataclass(frozen=True, slots=True)
class HandleKeys:
    """The keys whose handles count: the active one, and earlier ones until their handles have expired."""

    active_kid: str
    verify: Mapping[str, Ed25519PublicKey]
    by_header: Mapping[str, Ed25519PublicKey] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        by_header = {_header(kid): key for kid, key in self.verify.items()}
        object.__setattr__(self, "verify", MappingProxyType(dict(self.verify)))
        object.__setattr__(self, "by_header", MappingProxyType(by_header))


def sign(claims: Claims, key: Ed25519PrivateKey, kid: str) -> str:
    """The handle that says `claims`. ValueError if it would be longer than MAX_CHARS."""
    payload = {
        "iss": ISSUER,
        "sid": claims.sid,
        "cred": claims.cred,
        "gen": claims.generation,
        "iat": claims.issued_at,
        "exp": claims.expires_at,
        "jti": claims.jti,
    }
    text = PREFIX + _JWS.encode(
        json.dumps(payload, separators=(",", ":")).encode(),
        key,
        algorithm=_ALGORITHM,
        headers={"kid": kid, "typ": _TYPE},
        sort_headers=True,
    )
    if len(text) > MAX_CHARS:
        raise ValueError(f"a handle may have {MAX_CHARS} characters, not {len(text)}: use shorter names")
    if not text.startswith(PREFIX + _header(kid) + "."):  # a new PyJWT that writes headers differently
        raise ValueError("the handle's header is not the one that verify accepts")
    return text


def verify(text: str, keys: HandleKeys) -> Claims | Deny:
    """Whether we signed `text` with a key that still counts, and what it says. Time is not judged here.

    HANDLE_MALFORMED when it cannot be read, HANDLE_UNKNOWN when no key of ours vouches for it. A wrong
    signature under the name of a key of ours is an alarm: it was forged or altered.
    """
    if not text.startswith(PREFIX):
        return Deny(Reason.HANDLE_UNKNOWN, "not a handle")
    if len(text) > MAX_CHARS:
        return Deny(Reason.HANDLE_MALFORMED, "too long")
    segments = text[len(PREFIX) :].split(".")
    # PyJWT takes `=` at a segment's end, and then one handle would have several texts: a revoked or cached
    # one could come in disguise. Stray last bits, the other disguise, it refuses itself.
    if len(segments) != 3 or not all(segment and not segment.strip(BASE64URL) for segment in segments):
        return Deny(Reason.HANDLE_MALFORMED, "not three segments of base64url")
    key = keys.by_header.get(segments[0])
    if key is None:
        return Deny(Reason.HANDLE_UNKNOWN, "not signed by a key that is still valid")
    try:
        decoded = _JWS.decode_complete(text[len(PREFIX) :], key, algorithms=[_ALGORITHM])
    except PyJWTError:
        return Deny(Reason.HANDLE_UNKNOWN, "the signature is wrong", alarm=True)
    return _claims(decoded["payload"]) or Deny(Reason.HANDLE_MALFORMED, "not the claims of a handle")


def judge(
    claims: Claims, session: Session, credential: Credential, now: Now, by_id: Mapping[str, Session]
) -> Deny | None:
    """Whether a genuine handle counts for `credential`, on this session's origin, now. None when it does.

    That the session itself lives was judged by `identify`. The order is from the most telling to the
    least: a stolen handle is reported as stolen even when it has expired as well. `by_id`: the sessions that
    are known, among them this one's ancestors.
    """
    if claims.sid in session.ancestors:
        refused = _not_inherited(claims, session, credential, by_id)
    else:
        refused = _not_its_own(claims, session, now)
    if refused is not None:
        return refused
    if now.wall < claims.issued_at:
        # Our clock never goes back: with our key, but not by us.
        return Deny(Reason.HANDLE_UNKNOWN, f"handle {claims.jti} is issued in the future", alarm=True)
    if claims.cred != credential.name:
        detail = f"handle {claims.jti} of {claims.cred} stands where {credential.name} belongs"
        return Deny(Reason.HANDLE_MISPLACED, detail, alarm=True)
    if claims.cred not in session.credentials:
        return Deny(Reason.HANDLE_OUT_OF_SCOPE, f"credential {claims.cred}", ungranted=claims.cred)
    return None


def _not_its_own(claims: Claims, session: Session, now: Now) -> Deny | None:
    if claims.sid != session.id:
        detail = f"handle {claims.jti} of session {claims.sid}, used by session {session.id}"
        return Deny(Reason.HANDLE_STOLEN, detail, alarm=True)
    if claims.jti in session.revoked_handles:
        return Deny(Reason.HANDLE_REVOKED, f"handle {claims.jti}")
    if claims.generation != session.generation:
        detail = f"handle {claims.jti} is of generation {claims.generation}, not {session.generation}"
        return Deny(Reason.HANDLE_STALE, detail)
    if now.wall >= claims.expires_at:
        return Deny(Reason.HANDLE_EXPIRED, f"handle {claims.jti}")
    return None


def _not_inherited(
    claims: Claims, session: Session, credential: Credential, by_id: Mapping[str, Session]
) -> Deny | None:
    """An ancestor's string is a name, not authority: its expiry, and whether it is stale in its own session,
    do not matter here, where a process that began in an earlier life still holds it. It matters that this
    very string was revoked, as it has leaked; and that it was issued by a rebind after the fork, in a
    generation which is not before the one that the fork was born with: no process here can have inherited
    it. What generation the fork has now says nothing: a rebind raises it past its parent's later strings."""
    ancestor = by_id.get(claims.sid)
    if ancestor is None:
        detail = f"handle {claims.jti} of session {claims.sid}, which is not known"
        return Deny(Reason.HANDLE_STALE, detail)
    forked = _forked_at(ancestor, session, by_id)
    if claims.generation >= forked:
        detail = f"handle {claims.jti} of session {claims.sid} is of generation {claims.generation}"
        return Deny(Reason.HANDLE_STALE, f"{detail}, which is not before {forked}")
    if claims.jti in ancestor.revoked_handles:
        return Deny(Reason.HANDLE_REVOKED, f"handle {claims.jti} of session {claims.sid}")
    if not credential.inherit:
        detail = f"handle {claims.jti} of session {claims.sid}: {credential.name} is not inherited"
        return Deny(Reason.HANDLE_STALE, detail)
    return None


def _forked_at(ancestor: Session, session: Session, by_id: Mapping[str, Session]) -> int:
    """The generation that the first of the line from `ancestor` to `session` was born with; 0, before which
    there is none, when one between them is not known any more."""
    between = session.ancestors - ancestor.ancestors - {ancestor.id}
    born = (by_id[each].born if each in by_id else 0 for each in between)
    return min([session.born, *born])


def _claims(payload: bytes) -> Claims | None:
    """The payload's claims, or None when it is not exactly what `sign` writes."""
    try:
        pairs = json.loads(payload, object_pairs_hook=list)
    except (ValueError, RecursionError):
        return None
    if not isinstance(pairs, list) or len(pairs) != len(_CLAIMS):
        return None
    if not all(isinstance(pair, tuple) for pair in pairs):
        return None
    claims = dict(pairs)
    if claims.keys() != _CLAIMS or claims["iss"] != ISSUER:
        return None
    # `type`, not isinstance: a bool is an int to isinstance, and True would be generation 1.
    if any(type(claims[name]) is not str or not claims[name] for name in _STRING_CLAIMS):
        return None
    if any(type(claims[name]) is not int or claims[name] < 0 for name in _NUMBER_CLAIMS):
        return None
    if claims["iat"] >= claims["exp"]:
        return None
    return Claims(
        sid=claims["sid"],
        cred=claims["cred"],
        generation=claims["gen"],
        issued_at=claims["iat"],
        expires_at=claims["exp"],
        jti=claims["jti"],
    )
