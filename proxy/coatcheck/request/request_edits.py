"""What changes in a request before it leaves: the credentials, and what only concerned our connection."""

from collections.abc import Iterator, Mapping

from coatcheck.decision.denial import Deny
from coatcheck.decision.head import HOP_BY_HOP
from coatcheck.decision.message import Destination, Edits, RequestHead
from coatcheck.decision.policy import Credential
from coatcheck.decision.substitute import substitute
from coatcheck.decision.verdict import Inject
from coatcheck.request.known_secrets import Text, texts_of
from coatcheck.secrets import Secret


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
    values = {name: secret.reveal() for name, secret in secrets.items()}
    return substitute(head, destination, body, verdict.injections, values, now)


def texts_to_scrub(verdict: Inject, secrets: Mapping[str, Secret]) -> Iterator[Text]:
    """Each secret text of the injections that must not come back."""
    for injection in verdict.injections:
        if injection.credential.scrub:
            yield from texts_of(injection.credential, (secrets[injection.credential.name].reveal(),))


def minted_values(verdict: Inject, edits: Edits) -> Iterator[str]:
    """What the edits hold that was made for this request, and must not come back either."""
    for injection in verdict.injections:
        if injection.credential.scrub:
            yield from injection.credential.inject.minted(edits)


def secret_texts(credential: Credential, secret: Secret) -> tuple[str, ...]:
    """What of a credential's secret nobody may see: it, or the secret parts of a pair; empty when that cannot
    be read."""
    return credential.inject.private(secret.reveal())


def with_connection_edits(head: RequestHead, edits: Edits, scrubbing: Edits) -> Edits:
    """`edits`, plus what every forwarded request loses: hop-by-hop headers, and with `scrubbing` the codings
    and ranges that would keep its answer from being searched."""
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
