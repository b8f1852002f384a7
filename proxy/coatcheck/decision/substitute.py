"""Plan + secrets -> edits: puts each secret exactly where its handle stood, and nowhere else.

`decide` has already found the handles; everything is checked again here, because this is the last
pure step before a secret is in a request. No secret and no handle stands in any `Deny` that leaves.
How each way does it is its own matter (`coatcheck.injectors`).
"""

from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import unquote

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.injection import Outgoing
from coatcheck.decision.message import Destination, Edits, RequestHead
from coatcheck.decision.policy import Credential
from coatcheck.decision.search import MARK
from coatcheck.decision.verdict import Injection

_BODY_DIGESTS = frozenset({"content-md5", "digest", "content-digest", "repr-digest"})
"""They name the body as the client wrote it, so they go when it changes."""


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
    headers: dict[str, str] = {}
    removed: tuple[str, ...] = ()
    edited = head
    new_body: bytes | None = None
    if len(injections) > 1:
        if any(injection.credential.inject.alone for injection in injections):
            return Deny(Reason.HANDLE_MISPLACED, "a signed request carries one credential", alarm=True)
        injections = tuple(sorted(injections, key=lambda each: each.credential.inject.signs))
    for injection in injections:
        credential, kind = injection.credential, injection.credential.inject
        secret = secrets.get(credential.name)
        if secret is None:
            return Deny(Reason.SECRET_MISSING, f"credential {credential.name}: no value was fetched")
        unusable = check_secret(credential, secret)
        if unusable is not None:
            return unusable
        seen = _with(edited, headers, removed) if kind.signs and headers else edited
        whole = body if new_body is None else new_body
        change = kind.edit(Outgoing(seen, destination, whole, now), _as_sent(injection), secret)
        if isinstance(change, Deny):
            return replace(change, detail=f"credential {credential.name}: {change.detail}")
        for name, value in change.set_headers:
            if name in headers:
                return Deny(Reason.PLANE_CANNOT, f"two credentials want the header {name}")
            headers[name] = value
        removed += change.remove_headers
        if change.target is not None:
            edited = replace(edited, target=change.target)
        new_body = new_body if change.body is None else change.body
    left = _leftover(head, {*headers, *removed}, edited.target, injections)
    if left is not None:
        return left
    if new_body is not None:
        removed += tuple(name for name, _ in head.headers if name in _BODY_DIGESTS)
    target = None if edited.target == head.target else edited.target
    return Edits(tuple(headers.items()), removed, target, new_body)


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


def _leftover(
    head: RequestHead, edited: set[str], target: str, injections: tuple[Injection, ...]
) -> Deny | None:
    """A handle that would leave with the secrets: it was in a place which no credential declares."""
    rest = [value for name, value in head.headers if name not in edited]
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
