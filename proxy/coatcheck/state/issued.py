"""Which handles were issued: an index in memory of the database's rows, and the making of new ones."""

import secrets
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from math import floor
from typing import Final

from coatcheck.decision.handle import Claims
from coatcheck.decision.policy import Credential, Shape
from coatcheck.decision.session import Now, Session
from coatcheck.state.claims_cache import digest_of
from coatcheck.state.database import IssuedHandle
from coatcheck.state.errors import Problem, StateError

MIN_REFERENCE_CHARS: Final = 20
"""119 bits of chance: a reference cannot be guessed, and no other token is taken for one."""
MIN_REFERENCE_PREFIX: Final = 3
"""Requests are searched for the prefix; a shorter one would stand in every request."""
_ALPHABET: Final = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class MintedHandle:
    """A handle, once, for the caller that opens the session. Nobody can read it again."""

    credential: str
    env: str | None
    """The environment variable that the sandbox should find it in."""
    value: str = field(repr=False)
    expires_at: float
    """Unix seconds."""
    jti: str


def mint(
    session: Session, credential: Credential, now: Now, ttl: float | None, sign: Callable[[Claims], str]
) -> tuple[MintedHandle, IssuedHandle]:
    """A new handle for one credential of a session. It outlives neither `ttl` seconds nor the session."""
    issued_at = int(now.wall)
    expires_at = floor(session.expires_at if ttl is None else min(session.expires_at, now.wall + ttl))
    if expires_at <= issued_at:
        raise StateError(
            Problem.BAD_VALUE,
            f"a handle for session {session.id} would expire at once",
            "Ask for at least one second, or open a new session if this one is at its maximum age.",
        )
    jti = secrets.token_urlsafe(12)
    claims = Claims(session.id, credential.name, session.generation, issued_at, expires_at, jti)
    shape = credential.shape
    if shape is not None and shape.length:
        text = value = _reference(credential.name, shape)
    else:
        try:
            text = sign(claims)
        except ValueError as error:
            raise StateError(
                Problem.BAD_VALUE,
                f"no handle for credential {credential.name}: {error}",
                "Give the credential a shorter name.",
            ) from None
        value = (shape.prefix if shape is not None else "") + text
    issued = IssuedHandle(claims, digest_of(text), shape)
    return MintedHandle(credential.name, credential.env, value, expires_at, jti), issued


def _reference(credential: str, shape: Shape) -> str:
    if shape.length < MIN_REFERENCE_CHARS or len(shape.prefix) < MIN_REFERENCE_PREFIX:
        raise StateError(
            Problem.BAD_VALUE,
            f"the shape of credential {credential} is too weak for a handle",
            f"A shape with a length needs a prefix of at least {MIN_REFERENCE_PREFIX} characters"
            f" and a length of at least {MIN_REFERENCE_CHARS}.",
        )
    return shape.prefix + "".join(secrets.choice(_ALPHABET) for _ in range(shape.length))


class IssuedHandles:
    """Changed while `State` shows; planes read `references` and `shapes` without it, one step at a time."""

    def __init__(self, handles: Iterable[IssuedHandle]) -> None:
        self.by_session: dict[str, dict[str, IssuedHandle]] = {}
        self.references: dict[bytes, Claims] = {}
        self.signed: dict[bytes, Claims] = {}
        """All others, by digest: a key is gone sooner than a sandbox that sleeps with what it signed."""
        self.shapes: tuple[Shape, ...] = ()
        """The shapes that references were issued in, for `search.find`. They only ever grow in one run."""
        for handle in handles:
            self.add(handle)

    def add(self, handle: IssuedHandle) -> None:
        self.by_session.setdefault(handle.claims.sid, {})[handle.claims.jti] = handle
        if handle.is_reference and handle.shape is not None:
            self.references[handle.digest] = handle.claims
            if handle.shape not in self.shapes:
                self.shapes = (*self.shapes, handle.shape)
        else:
            self.signed[handle.digest] = handle.claims

    def of(self, session_id: str) -> tuple[IssuedHandle, ...]:
        return tuple(self.by_session.get(session_id, {}).values())

    def revoked_of(self, session_id: str) -> frozenset[str]:
        return frozenset(handle.claims.jti for handle in self.of(session_id) if handle.revoked)

    def revoke(self, session_id: str, jti: str) -> None:
        handles = self.by_session[session_id]
        handles[jti] = replace(handles[jti], revoked=True)

    def drop(self, handles: Iterable[IssuedHandle]) -> None:
        for handle in handles:
            self.references.pop(handle.digest, None)
            self.signed.pop(handle.digest, None)
            of_session = self.by_session.get(handle.claims.sid, {})
            of_session.pop(handle.claims.jti, None)
            if not of_session:
                self.by_session.pop(handle.claims.sid, None)

    def expired(self, now: Now) -> list[IssuedHandle]:
        return [
            handle
            for handles in self.by_session.values()
            for handle in handles.values()
            if now.wall >= handle.claims.expires_at
        ]
