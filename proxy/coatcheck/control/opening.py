"""Opening a session: what is asked for is checked, made, given a listener, and handed out once."""

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from coatcheck.control import models
from coatcheck.control.backend import Listen
from coatcheck.control.context import Context
from coatcheck.control.problem import ControlProblem, Refusal, from_state
from coatcheck.decision.message import Origin, OriginClass
from coatcheck.decision.session import Session
from coatcheck.state.errors import Problem, StateError
from coatcheck.state.issued import MintedHandle
from coatcheck.state.sessions import OWN_SANDBOX, SANDBOX_SOCKETS, NewSession

PROXY_USER: Final = "sandbox"
"""The user name beside a generated proxy password; nobody reads it."""

_TRANSPARENT: Final = "transparent|"
"""How the value of an `address` begins whose connections are redirected."""

_SHA256: Final = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Opened:
    """A session that is live and reachable."""

    session: Session
    handles: tuple[MintedHandle, ...]
    url: str | None = field(repr=False)
    """Of its proxy, with the password of a `bearer` origin in it."""


@dataclass(frozen=True, slots=True)
class Proof:
    """How the session's connections will be told from others."""

    origin: Origin | None
    listen: Listen | None
    password: str | None = field(default=None, repr=False)
    """Of a `bearer` origin. It is shown once, and kept as its hash."""


def proof_of(wanted: models.NewSession, shared: str | None, transparent: bool = False) -> Proof:
    """What the request's `origin` and `listen` mean together. `shared`: the shared listener's URL;
    `transparent`: there is one for redirected connections."""
    asked = wanted.origin
    kind = asked.origin_class if asked is not None else OriginClass.SOCKET
    value = asked.value if asked is not None else None
    if kind is OriginClass.SOCKET:
        if value is not None:
            raise _bad("a socket's value is made by the daemon", "Leave origin.value out.")
        listen = wanted.listen or "unix"
        return Proof(None, None if listen == "none" else listen)
    if wanted.listen not in (None, "none"):
        raise _bad(f"a session of origin class {kind} has no listener of its own", "Leave listen out.")
    redirected = kind is OriginClass.ADDRESS and value is not None and value.startswith(_TRANSPARENT)
    if not (transparent if redirected else shared is not None):
        raise ControlProblem(
            Refusal.NO_SHARED_LISTENER,
            f"origin class {kind} needs a shared listener, and the daemon has none",
            f"Set COATCHECK_{'TRANSPARENT' if redirected else 'PROXY'}_PORT and start the daemon again, "
            "or use class socket.",
        )
    if kind is OriginClass.BEARER:
        if value is not None:
            raise _bad("the proxy password is made by the daemon", "Leave origin.value out.")
        password = secrets.token_urlsafe(32)
        return Proof(Origin(kind, hashlib.sha256(password.encode()).hexdigest()), None, password)
    if value is None:
        raise _bad(f"origin class {kind} needs a value", _VALUES[kind])
    if not _well_formed(kind, value):
        raise _bad(f"this is not a value for origin class {kind}", _VALUES[kind])
    return Proof(Origin(kind, value), None)


async def open_session(
    context: Context, wanted: models.NewSession, caller: str, generation: int | None = None
) -> Opened:
    """A live session with its handles. Whatever fails after it was made ends it again. `generation`: of the
    sandbox's life that this daemon makes it for; if the daemon dies before that begins, it is of no use."""
    state = context.backend.state
    shared = context.backend.proxy_url
    proof = proof_of(wanted, shared, context.backend.transparent)
    new = NewSession(
        tenant=wanted.tenant,
        subject=wanted.subject,
        policy=wanted.policy,
        origin=proof.origin,
        credentials=None if wanted.credentials is None else frozenset(wanted.credentials),
        isolation=wanted.isolation,
        lease_seconds=wanted.lease_seconds,
        max_age=wanted.max_age,
        parent=wanted.parent,
        generation=1 if generation is None else generation,
    )

    def make() -> tuple[Session, tuple[MintedHandle, ...]]:
        made = state.open_session(new, caller)
        try:
            if generation is not None:  # before anything can be done with it
                state.note_listener(made[0].id, OWN_SANDBOX)
        except BaseException:
            state.end(made[0].id, caller)
            raise
        return made

    session, handles = await context.give(make)
    try:
        url = await _url(context, session, proof, shared, note=generation is None)
    except BaseException as error:
        await context.take(lambda: state.end(session.id, caller))
        if isinstance(error, StateError):
            raise from_state(error) from None
        if isinstance(error, OSError):
            raise ControlProblem(
                Refusal.LISTENER,
                f"the session's listener could not be opened: {error.strerror or error}",
                "See the daemon's log; it may be out of file descriptors. No session was left open.",
            ) from None
        raise
    return Opened(session, handles, url)


async def _url(
    context: Context, session: Session, proof: Proof, shared: str | None, *, note: bool
) -> str | None:
    listen = proof.listen
    if listen is not None:
        url = await context.bridge.call(lambda: context.backend.open_listener(session.id, listen))
        port = SANDBOX_SOCKETS if listen == "sandbox" else urlsplit(url).port or 0
        if note:
            await context.give(lambda: context.backend.state.note_listener(session.id, port))
        return url
    if proof.password is not None and shared is not None:
        return shared.replace("://", f"://{PROXY_USER}:{proof.password}@", 1)
    return shared if proof.origin is not None and not is_transparent(proof.origin) else None


def is_transparent(origin: Origin) -> bool:
    """Whether its connections come to the transparent listener, whose clients know of no proxy."""
    return origin.kind is OriginClass.ADDRESS and origin.value.startswith(_TRANSPARENT)


_VALUES: Final = {
    OriginClass.MTLS: "It is the SHA-256 of the client certificate's DER form, 64 lower-case hex digits.",
    OriginClass.TOKEN: "It is `issuer|pod uid`.",
    OriginClass.ADDRESS: "It is `listener|source address`: proxy|10.1.2.3, or transparent|10.1.2.3.",
}


def _well_formed(kind: OriginClass, value: str) -> bool:
    if kind is OriginClass.MTLS:
        return _SHA256.fullmatch(value) is not None
    left, bar, right = value.partition("|")
    if not (left and bar and right) or "|" in right:
        return False
    if kind is OriginClass.TOKEN:
        return True
    try:
        # Written as the kernel will write it; another spelling would match no connection.
        return str(ip_address(right)) == right
    except ValueError:
        return False


def _bad(message: str, hint: str) -> ControlProblem:
    return ControlProblem(Problem.BAD_VALUE, message, hint)
