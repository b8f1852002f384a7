"""Plan + secrets -> edits: puts each secret exactly where its handle stood, and nowhere else.

`decide` has already found the handles; everything is checked again here, because this is the last
pure step before a secret is in a request. No secret and no handle stands in any `Deny` that leaves.
How each way does it is its own matter (`coatcheck.injectors`).
"""

from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import unquote

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.head import BODY_DIGESTS
from coatcheck.decision.injection import Outgoing
from coatcheck.decision.message import Destination, Edits, RequestHead
from coatcheck.decision.policy import Credential
from coatcheck.decision.search import MARK
from coatcheck.decision.verdict import Injection


def substitute(
    head: RequestHead,
    destination: Destination,
    body: bytes | None,
    injections: tuple[Injection, ...],
    secrets: Mapping[str, str],
    now: float,
) -> Edits | Deny:
    """What the plane must change so that `head` and `body` carry the secrets of `injections`.

    `body` is the whole body where `body_limit` asks for it, else None. `secrets` maps the credentials'
    names to their values. `now` is Unix time.
    """
    if len(injections) == 1:  # as nearly always: nothing to put together
        change = _edit(Outgoing(head, destination, body, now), injections[0], secrets)
        return change if isinstance(change, Deny) else _checked(head, change, injections)
    if any(injection.credential.inject.alone for injection in injections):
        return Deny(Reason.HANDLE_MISPLACED, "a signed request carries one credential", alarm=True)
    headers: dict[str, str] = {}
    removed: tuple[str, ...] = ()
    edited = head
    new_body = None
    for injection in sorted(injections, key=lambda each: each.credential.inject.signs):
        seen = _with(edited, headers, removed) if injection.credential.inject.signs else edited
        whole = body if new_body is None else new_body
        change = _edit(Outgoing(seen, destination, whole, now), injection, secrets)
        if isinstance(change, Deny):
            return change
        for name, value in change.set_headers:
            if headers.get(name, value) != value:
                return Deny(Reason.PLANE_CANNOT, f"two credentials need the header {name}")
            headers[name] = value
        removed += change.remove_headers
        if change.target is not None:
            edited = replace(edited, target=change.target)
        new_body = new_body if change.body is None else change.body
    target = None if edited.target == head.target else edited.target
    return _checked(head, Edits(tuple(headers.items()), removed, target, new_body), injections)


def _edit(request: Outgoing, injection: Injection, secrets: Mapping[str, str]) -> Edits | Deny:
    """What one injection changes."""
    credential = injection.credential
    secret = secrets.get(credential.name)
    if secret is None:
        return Deny(Reason.SECRET_MISSING, f"credential {credential.name}: no value was fetched")
    change = credential.inject.unusable(secret, credential.scrub) or credential.inject.edit(
        request, _as_sent(injection), secret
    )
    if isinstance(change, Deny):
        return replace(change, detail=f"credential {credential.name}: {change.detail}")
    return change


def _checked(head: RequestHead, edits: Edits, injections: tuple[Injection, ...]) -> Edits | Deny:
    """The edits, unless a handle would leave with them."""
    left = _leftover(head, edits, injections)
    if left is not None:
        return left
    if edits.body is None:
        return edits
    stale = tuple(name for name, _ in head.headers if name in BODY_DIGESTS)
    return replace(edits, remove_headers=(*edits.remove_headers, *stale))


def body_limit(head: RequestHead, injections: tuple[Injection, ...]) -> int:
    """How many bytes of body a plane must buffer for `substitute`; 0 when it needs none."""
    if head.end_stream:
        return 0
    return min(filter(None, (each.credential.inject.buffers(head) for each in injections)), default=0)


def check_secret(credential: Credential, secret: str) -> Deny | None:
    """None when `secret` can be injected as the credential says."""
    unusable = credential.inject.unusable(secret, credential.scrub)
    if unusable is None:
        return None
    return replace(unusable, detail=f"credential {credential.name}: {unusable.detail}")


def _as_sent(injection: Injection) -> str | None:
    """The handle as its client wrote it: with its credential's prefix shape before it."""
    handle, shape = injection.handle, injection.credential.shape
    if handle is None or shape is None or shape.length or handle.startswith(shape.prefix):
        return handle
    return shape.prefix + handle


def _with(head: RequestHead, headers: Mapping[str, str], removed: tuple[str, ...]) -> RequestHead:
    kept = tuple(pair for pair in head.headers if pair[0] not in headers and pair[0] not in removed)
    return replace(head, headers=(*kept, *headers.items()))


def _leftover(head: RequestHead, edits: Edits, injections: tuple[Injection, ...]) -> Deny | None:
    """A handle that would leave with the secrets: it was in a place which no credential declares."""
    edited = [name for name, _ in edits.set_headers]
    edited += edits.remove_headers
    rest = [value for name, value in head.headers if name not in edited]
    target = head.target if edits.target is None else edits.target
    rest.append(target)
    if "%" in target:
        rest.append(unquote(target))
    text = "\n".join(rest)
    found = MARK in text
    for injection in injections:
        found = found or (injection.handle is not None and injection.handle in text)
    if found:
        return Deny(Reason.HANDLE_MISPLACED, "a second handle, outside the declared place", alarm=True)
    return None
