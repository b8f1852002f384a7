"""Plan + secrets -> edits: puts each secret exactly where its handle stood, and nowhere else.

`decide` has already found the handles; everything is checked again here, because this is the last
pure step before a secret is in a request. No secret and no handle stands in any `Deny` that leaves.
SigV4 puts no secret into a request: see `coatcheck.sigv4`.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import quote, unquote

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Edits, RequestHead
from coatcheck.decision.policy import (
    BasicInjection,
    BodyInjection,
    Credential,
    HeaderInjection,
    PathInjection,
    QueryInjection,
)
from coatcheck.decision.search import MARK
from coatcheck.decision.substitute_body import substitute_body
from coatcheck.decision.substitute_pair import substitute_pair
from coatcheck.decision.verdict import Injection

SHORTEST_SCRUBBED_SECRET = 16
"""Bytes. A shorter one would be taken out of answers where it stands by chance."""

_PCHAR = "!$&'()*+,;=:@"
"""What a path segment may hold unencoded besides letters, digits and `-._~` (RFC 3986, 3.3). Telegram's
`bot123:abc` must keep its colon."""

_BODY_DIGESTS = frozenset({"content-md5", "digest", "content-digest", "repr-digest"})
"""They name the body as the client wrote it, so they go when it changes."""


def substitute(
    head: RequestHead,
    body: bytes | None,
    injections: tuple[Injection, ...],
    secrets: Mapping[str, str],
) -> Edits | Deny:
    """What the plane must change so that `head` and `body` carry the secrets of `injections`.

    `body` is the whole body where `body_limit(injections)` asks for it, else None. `secrets` maps
    the credentials' names to their values.
    """
    headers: dict[str, str] = {}
    target = head.target
    new_body: bytes | None = None
    for injection in injections:
        credential, handle = injection.credential, _as_sent(injection)
        secret = secrets.get(credential.name)
        if secret is None:
            return Deny(Reason.SECRET_MISSING, f"credential {credential.name}: no value was fetched")
        unusable = check_secret(credential, secret)
        if unusable is not None:
            return unusable
        kind = credential.inject
        name = ""
        change: str | bytes | Deny
        if isinstance(kind, HeaderInjection):
            name = kind.name.lower()
            change = _header(head, name, kind, handle, secret)
        elif isinstance(kind, BasicInjection):
            name = "authorization"
            change = _basic(head, kind, handle, secret)
        elif isinstance(kind, QueryInjection):
            change = _query(target, kind, handle, secret)
        elif isinstance(kind, PathInjection):
            change = _path(target, kind, handle, secret)
        elif isinstance(kind, BodyInjection):
            change = substitute_body(head, body if new_body is None else new_body, kind, handle, secret)
        else:
            change = Deny(Reason.PLANE_CANNOT, "SigV4 is signed, not put in, and stands alone in a request")
        if isinstance(change, Deny):
            return replace(change, detail=f"credential {credential.name}: {change.detail}")
        if isinstance(change, bytes):
            new_body = change
        elif not name:
            target = change
        elif name in headers:
            return Deny(Reason.PLANE_CANNOT, f"two credentials want the header {name}")
        else:
            headers[name] = change
    left = _leftover(head, headers, target, injections)
    if left is not None:
        return left
    stale = () if new_body is None else tuple(n for n, _ in head.headers if n in _BODY_DIGESTS)
    return Edits(tuple(headers.items()), stale, None if target == head.target else target, new_body)


def body_limit(injections: tuple[Injection, ...]) -> int:
    """How many bytes of body a plane must buffer for `substitute`; 0 when it needs none."""
    kinds = (injection.credential.inject for injection in injections)
    return min((kind.max_bytes for kind in kinds if isinstance(kind, BodyInjection)), default=0)


def check_secret(credential: Credential, secret: str) -> Deny | None:
    """None when `secret` can stand in a request without changing its structure."""
    name = credential.name
    if not secret:
        return Deny(Reason.SECRET_UNUSABLE, f"credential {name}: the secret is empty")
    if not (secret.isascii() and secret.isprintable()):
        if any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in secret):
            return Deny(
                Reason.SECRET_UNUSABLE,
                f"credential {name}: the secret holds a line break or another control character; "
                "store it again without (`vault kv put … key=-` keeps a final newline)",
            )
        if any(ord(char) > 0xFF for char in secret):
            return Deny(Reason.SECRET_UNUSABLE, f"credential {name}: the secret is not latin-1 text")
    if secret[0] == " " or secret[-1] == " ":
        # A header's outer blanks are not part of its value (RFC 9110, 5.5): upstreams would differ.
        return Deny(Reason.SECRET_UNUSABLE, f"credential {name}: the secret begins or ends with a blank")
    if credential.scrub and len(secret) < SHORTEST_SCRUBBED_SECRET:
        return Deny(
            Reason.SECRET_UNUSABLE,
            f"credential {name}: a secret shorter than {SHORTEST_SCRUBBED_SECRET} bytes cannot be taken "
            "out of answers safely; store a longer one, or write `scrub: off` with a reason in the policy",
        )
    return None


def _as_sent(injection: Injection) -> str | None:
    """The handle as its client wrote it: with its credential's prefix shape before it."""
    handle, shape = injection.handle, injection.credential.shape
    if handle is None or shape is None or shape.length or handle.startswith(shape.prefix):
        return handle
    return shape.prefix + handle


def _header(
    head: RequestHead, name: str, kind: HeaderInjection, handle: str | None, secret: str
) -> str | Deny:
    before, mark, after = kind.template.partition("{secret}")
    if not mark or "{secret}" in after:
        return Deny(Reason.PLANE_CANNOT, "the template needs one {secret}")
    value = _only(head, name)
    if isinstance(value, Deny):
        return value
    if handle is not None and value != f"{before}{handle}{after}":
        if value is None:
            return Deny(Reason.HANDLE_MISSING, f"no header {name}")
        # Schemes compare without case (RFC 9110, 11.1); everything else to the letter.
        scheme = len(before)
        if value[:scheme].lower() != before.lower() or value[scheme:] != handle + after:
            return Deny(Reason.HANDLE_MISPLACED, f"header {name} is not exactly {kind.template!r}")
    return f"{before}{secret}{after}"


def _basic(head: RequestHead, kind: BasicInjection, handle: str | None, secret: str) -> str | Deny:
    value = _only(head, "authorization")
    if isinstance(value, Deny):
        return value
    username = kind.username
    if handle is not None or username is None:
        if value is None:
            # git and others send credentials only when they are asked (RFC 7617, 2).
            challenge = f'Basic realm="{kind.realm}", charset="UTF-8"'
            return Deny(Reason.HANDLE_MISSING, "no Basic credentials", challenge=challenge)
        pair = _decode_basic(value)
        if isinstance(pair, Deny):
            return pair
        if handle is not None and pair[1] != handle:
            return Deny(Reason.HANDLE_MISPLACED, "the Basic password is not exactly the handle")
        username = pair[0] if username is None else username
    if ":" in username:
        return Deny(Reason.PLANE_CANNOT, "a Basic username holds no colon (RFC 7617, 2)")
    return "Basic " + base64.b64encode(f"{username}:{secret}".encode()).decode("ascii")


def _decode_basic(value: str) -> tuple[str, str] | Deny:
    """Username and password, or why two readers could disagree about them (RFC 7617)."""
    scheme, _, token = value.partition(" ")
    refused = Deny(Reason.HANDLE_MALFORMED, "Authorization is not strict Basic: base64 of username:password")
    if scheme.lower() != "basic":
        return refused
    try:
        raw = base64.b64decode(token, validate=True)
        # Lenient decoders accept stray bits in the last character; one text must have one encoding.
        if base64.b64encode(raw).decode("ascii") != token:
            return refused
        text = raw.decode("utf-8")
    except (binascii.Error, ValueError):
        return refused
    username, colon, password = text.partition(":")
    if not colon or not text.isprintable():
        return refused
    return username, password


def _query(target: str, kind: QueryInjection, handle: str | None, secret: str) -> str | Deny:
    path, _, query = target.partition("?")
    pairs = substitute_pair(query, kind.name, handle, secret)
    return pairs if isinstance(pairs, Deny) else f"{path}?{pairs}"


def _path(target: str, kind: PathInjection, handle: str | None, secret: str) -> str | Deny:
    if handle is None:
        return Deny(Reason.HANDLE_MISSING, "only a handle shows which path segment is meant")
    path, mark, query = target.partition("?")
    segments = path.split("/")
    wanted = kind.prefix + handle
    found = [at for at, segment in enumerate(segments) if unquote(segment) == wanted]
    if len(found) != 1:
        return Deny(
            Reason.HANDLE_MISPLACED if handle in unquote(path) else Reason.HANDLE_MISSING,
            f"{len(found)} path segments are {kind.prefix!r} and the handle; there must be one",
        )
    segment = quote(kind.prefix + secret, safe=_PCHAR)
    if segment in (".", ".."):
        return Deny(Reason.SECRET_UNUSABLE, "the secret would be a dot segment")
    segments[found[0]] = segment
    return "/".join(segments) + mark + query


def _only(head: RequestHead, name: str) -> str | Deny | None:
    values = [value for key, value in head.headers if key == name]
    if len(values) > 1:
        return Deny(Reason.HEADER_FORM_REFUSED, f"header {name} stands {len(values)} times")
    return values[0] if values else None


def _leftover(
    head: RequestHead, edited: Mapping[str, str], target: str, injections: tuple[Injection, ...]
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
