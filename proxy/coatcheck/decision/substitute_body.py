"""A handle in a JSON or form body: found by parsing, replaced in place, so that all else keeps its bytes."""

import json
from typing import NoReturn

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import RequestHead
from coatcheck.decision.policy import BodyInjection
from coatcheck.decision.substitute_pair import substitute_pair

type Json = str | int | float | bool | list[Json] | dict[str, Json] | None

MOST_CONTAINERS = 50_000
"""Objects and lists in one JSON body: a megabyte of `[` must not cost a megabyte of Python objects."""


def substitute_body(
    head: RequestHead, body: bytes | None, kind: BodyInjection, handle: str | None, secret: str
) -> bytes | Deny:
    """`body` with the secret as the value of `kind.field`, or why that cannot be done in one reading."""
    if handle is None:
        return Deny(Reason.HANDLE_MISSING, "only a handle shows that a body wants this credential")
    if not body:
        if head.end_stream or body is not None:
            return Deny(Reason.HANDLE_MISSING, "no body")
        return Deny(Reason.PLANE_CANNOT, "the plane did not buffer the body")
    if len(body) > kind.max_bytes:
        return Deny(Reason.BODY_TOO_LARGE, f"more than {kind.max_bytes} bytes for a body injection")
    media = _media(head, kind)
    if isinstance(media, Deny):
        return media
    if media == "application/x-www-form-urlencoded":
        if not body.isascii():
            return Deny(Reason.BODY_UNREADABLE, "a form body is ASCII")
        pairs = substitute_pair(body.decode("ascii"), kind.field, handle, secret)
        return pairs if isinstance(pairs, Deny) else pairs.encode("ascii")
    return _substitute_json(body, kind.field, handle, secret)


def _media(head: RequestHead, kind: BodyInjection) -> str | Deny:
    encodings = [value.strip().lower() for value in head.get_all("content-encoding")]
    if any(encoding not in ("", "identity") for encoding in encodings):
        return Deny(Reason.BODY_UNREADABLE, "a compressed body is not opened to put a credential in")
    types = head.get_all("content-type")
    if len(types) != 1:
        return Deny(Reason.HEADER_FORM_REFUSED, f"content-type stands {len(types)} times")
    media, *parameters = (part.strip().lower() for part in types[0].split(";"))
    for parameter in parameters:
        # UTF-7 or UTF-16 would make this parser and the upstream's read different bodies.
        if parameter.startswith("charset") and parameter not in ("charset=utf-8", 'charset="utf-8"'):
            return Deny(Reason.BODY_UNREADABLE, "the body's charset is not UTF-8")
    known = media in ("application/x-www-form-urlencoded", "application/json") or media.endswith("+json")
    if media not in kind.media or not known:
        return Deny(Reason.BODY_UNREADABLE, "the body's content type is not one that the credential names")
    return media


def _substitute_json(body: bytes, field: str, handle: str, secret: str) -> bytes | Deny:
    value = _field(body, field)
    if isinstance(value, Deny):
        return value
    if value != handle:
        return Deny(Reason.HANDLE_MISPLACED, f"JSON field {field} is not exactly the handle")
    needle = handle.encode("ascii")
    if body.count(needle) != 1:
        return Deny(Reason.HANDLE_MISPLACED, "the handle must stand once in the body, without escapes")
    edited = body.replace(needle, json.dumps(secret)[1:-1].encode("ascii"))
    # Read again: `{"field": "\u0063ch_…", "note": "cch_…"}` would have put the secret into the note.
    if _field(edited, field) != secret:
        return Deny(
            Reason.HANDLE_MISPLACED, f"the handle stands elsewhere than in JSON field {field}", alarm=True
        )
    return edited


def _field(body: bytes, field: str) -> Json | Deny:
    """The value at a dotted path; a number selects from a list."""
    if body.count(b"{") + body.count(b"[") > MOST_CONTAINERS:
        return Deny(Reason.BODY_UNREADABLE, f"more than {MOST_CONTAINERS} objects and lists in the JSON body")
    try:
        value: Json = json.loads(body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        # ValueError is bad UTF-8, bad JSON, a duplicate key, NaN, or a number of thousands of digits.
        return Deny(Reason.BODY_UNREADABLE, "not JSON with unique keys and bounded depth")
    for part in field.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isascii() and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return Deny(Reason.HANDLE_MISSING, f"no JSON field {field}")
    return value


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        # Parsers keep the first or the last: the upstream's may differ from ours.
        raise ValueError("duplicate key")
    return found


def _no_constant(_name: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")
