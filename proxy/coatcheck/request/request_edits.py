"""What changes in a request before it leaves: the credentials, and what only concerned our connection."""

import hashlib
from collections.abc import Iterator, Mapping

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.head import HOP_BY_HOP
from coatcheck.decision.message import Destination, Edits, RequestHead
from coatcheck.decision.policy import BasicInjection, Credential, SigV4Injection
from coatcheck.decision.response import plan_request_for_scrubbing
from coatcheck.decision.substitute import substitute
from coatcheck.decision.verdict import Inject
from coatcheck.secrets import Secret
from coatcheck.sigv4.keys import parse_aws_keys
from coatcheck.sigv4.resign import resign


def credential_edits(
    head: RequestHead,
    destination: Destination,
    verdict: Inject,
    secrets: Mapping[str, Secret],
    body: bytes | None,
    now: float,
) -> Edits | Deny:
    """The edits that put the verdict's credentials in. `body` is the whole body where one was buffered;
    `now` is Unix time."""
    signed = [i for i in verdict.injections if isinstance(i.credential.inject, SigV4Injection)]
    if not signed:
        values = {name: secret.reveal() for name, secret in secrets.items()}
        return substitute(head, body, verdict.injections, values)
    if len(verdict.injections) != 1:
        return Deny(Reason.HANDLE_MISPLACED, "a signed request carries one credential", alarm=True)
    credential, kind = signed[0].credential, signed[0].credential.inject
    keys = parse_aws_keys(secrets[credential.name].reveal())
    if isinstance(keys, Deny) or not isinstance(kind, SigV4Injection):
        return keys if isinstance(keys, Deny) else Deny(Reason.INTERNAL_ERROR, "not SigV4")
    digest = hashlib.sha256(body).hexdigest() if body is not None else None
    return resign(head, destination, digest, signed[0].handle, keys, kind, now)


def secret_travels(verdict: Inject, secrets: Mapping[str, Secret]) -> bool:
    """Whether a secret is in the request, for an answer to echo. A signature alone gives nothing away."""
    return any(
        not isinstance(injection.credential.inject, SigV4Injection)
        or len(secret_texts(injection.credential, secrets[injection.credential.name])) > 1
        for injection in verdict.injections
    )


def values_to_scrub(verdict: Inject, secrets: Mapping[str, Secret]) -> Iterator[tuple[Credential, str, str]]:
    """Each secret text that must not come back, with its credential and Basic's user name (or "")."""
    for injection in verdict.injections:
        credential = injection.credential
        if not credential.scrub:
            continue
        inject = credential.inject
        username = inject.username if isinstance(inject, BasicInjection) else None
        for value in secret_texts(credential, secrets[credential.name]):
            yield credential, value, username or ""


def secret_texts(credential: Credential, secret: Secret) -> tuple[str, ...]:
    """What of a credential's secret nobody may see: it, or the secret parts of an AWS key pair; empty when
    that cannot be read."""
    value = secret.reveal()
    if not isinstance(credential.inject, SigV4Injection):
        return (value,)
    keys = parse_aws_keys(value)
    return () if isinstance(keys, Deny) else keys.to_scrub


def with_connection_edits(head: RequestHead, edits: Edits, *, injected: bool, scrub: bool) -> Edits:
    """`edits`, plus what every forwarded request loses: hop-by-hop headers, and codings and ranges that
    would keep its answer from being scrubbed."""
    scrubbing = plan_request_for_scrubbing(head, injected=injected) if scrub else Edits()
    changed = scrubbing.set_headers
    gone = tuple(name for name, _ in head.headers if name in HOP_BY_HOP)
    if head.get("upgrade") is not None:
        # The switch needs its Connection header; extensions would hide frames (planes/websocket).
        gone = (*(name for name in gone if name != "connection"), "sec-websocket-extensions")
        changed = (*changed, ("connection", "Upgrade"))
    return Edits(
        set_headers=(*changed, *edits.set_headers),
        remove_headers=(*gone, *scrubbing.remove_headers, *edits.remove_headers),
        target=edits.target,
        body=edits.body,
    )
