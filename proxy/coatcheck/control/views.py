"""Sessions and handles as the control API shows them."""

from collections.abc import Iterable

from coatcheck.control.backend import Backend
from coatcheck.control.models import HandleView, MintedHandle, OriginView, ProxyView, SessionView
from coatcheck.decision.policy import Policy
from coatcheck.decision.session import Session
from coatcheck.state.database import IssuedHandle, Status
from coatcheck.state.issued import MintedHandle as Minted
from coatcheck.state.state import State


def lease_expires_at(session: Session, state: State) -> float:
    """Unix seconds. The lease itself runs on the monotonic clock, which nobody outside can read."""
    now = state.clock.now()
    return min(now.wall + session.lease_deadline - now.monotonic, session.expires_at)


def session_view(session: Session, state: State) -> SessionView:
    """A session as it is now. StateError when it was forgotten in between."""
    status = state.status(session.id)
    return SessionView(
        id=session.id,
        tenant=session.tenant,
        subject=session.subject,
        policy=session.policy,
        status=status,
        origin=OriginView(origin_class=session.origin.kind, value=session.origin.value),
        credentials=sorted(session.credentials),
        isolation=session.isolation,
        generation=session.generation,
        ancestors=sorted(session.ancestors),
        opened_at=session.opened_at,
        opened_by=session.opened_by,
        expires_at=session.expires_at,
        lease_seconds=session.lease_seconds,
        lease_expires_at=lease_expires_at(session, state) if status is Status.LIVE else None,
    )


def proxy_view(backend: Backend, session_id: str, url: str | None) -> ProxyView:
    """How a session's clients reach us; `url` is the proxy's, which may hold a password."""
    trust = backend.trust_for(session_id)
    return ProxyView(
        url=url,
        transparent=backend.endpoint(session_id, ".t"),
        dns=backend.endpoint(session_id, ".d"),
        ca=str(trust.ca),
        ca_bundle=str(trust.bundle),
    )


def handle_view(handle: IssuedHandle) -> HandleView:
    claims = handle.claims
    return HandleView(
        jti=claims.jti,
        credential=claims.cred,
        generation=claims.generation,
        issued_at=claims.issued_at,
        expires_at=claims.expires_at,
        revoked=handle.revoked,
    )


def git_logins(handles: Iterable[Minted], policy: Policy | None) -> dict[str, tuple[str, str]]:
    """What git needs: host -> user name and variable, of the credentials that are the password of Basic."""
    found: dict[str, tuple[str, str]] = {}
    for minted in handles:
        credential = policy.credentials.get(minted.credential) if policy is not None else None
        if credential is None or minted.env is None:
            continue
        for injector in credential.injectors:
            if injector.challenge() is not None:
                user = injector.basic_username or "x-access-token"
                hosts = [host.suffix for host in credential.hosts if not host.wildcard]
                found |= dict.fromkeys(hosts, (user, minted.env))
    return found


def minted_view(minted: Minted, policy: Policy | None) -> MintedHandle:
    """A handle with its value and the variables in which clients look for it.

    For SigV4 these are a stand-in key pair beside the handle, which is its session token.
    """
    credential = policy.credentials.get(minted.credential) if policy is not None else None
    variables = {minted.env: minted.value} if minted.env else {}
    if credential is not None:
        variables |= credential.inject.environment(minted.value)
    return MintedHandle(
        credential=minted.credential,
        value=minted.value,
        env=minted.env,
        expires_at=minted.expires_at,
        jti=minted.jti,
        environment=variables,
    )
