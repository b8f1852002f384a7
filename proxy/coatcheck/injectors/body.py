"""`inject: {body: {field: auth.token, max: 1MiB}}`: one field of a JSON or form body.

The handle is found by parsing and replaced in place, so that all else keeps its bytes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NoReturn

from pydantic import Field

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.injection import Found, Injector, Outgoing
from coatcheck.decision.message import Edits, RequestHead
from coatcheck.injectors.pairs import substitute_pair
from coatcheck.injectors.spelling import Size, Strict, Token, Way

type Json = str | int | float | bool | list[Json] | dict[str, Json] | None

MOST_CONTAINERS = 50_000
"""Objects and lists in one JSON body: a megabyte of `[` must not cost a megabyte of Python objects."""


@dataclass(frozen=True, slots=True)
class BodyInjection(Injector):
    """Field `field` of a JSON or form body carries the handle; bodies up to `max_bytes` are buffered."""

    key: ClassVar[str] = "body"
    handle_in_body: ClassVar[bool] = True
    beside_others: ClassVar[bool] = False
    needs_handle: ClassVar[bool] = True
    field: str
    media: frozenset[str] = frozenset({"application/json", "application/x-www-form-urlencoded"})
    max_bytes: int = 1_048_576

    def stands_at(self, found: Found, glued: str) -> bool:
        return False

    def shown(self, head: RequestHead, value: str) -> RequestHead:
        return replace(head, end_stream=False)

    @property
    def spot(self) -> tuple[str, str]:
        return "body", self.field

    def edit(self, request: Outgoing, handle: str | None, secret: str) -> Edits | Deny:
        """The body with the secret as the value of `field`, or why that cannot be done in one reading."""
        head, body = request.head, request.body
        if handle is None:
            return Deny(Reason.HANDLE_MISSING, "only a handle shows that a body needs this credential")
        if not body:
            if head.end_stream or body is not None:
                return Deny(Reason.HANDLE_MISSING, "no body")
            return Deny(Reason.PLANE_CANNOT, "the plane did not buffer the body")
        if len(body) > self.max_bytes:
            return Deny(Reason.BODY_TOO_LARGE, f"more than {self.max_bytes} bytes for a body injection")
        media = _media(head, self.media)
        if isinstance(media, Deny):
            return media
        if media != "application/x-www-form-urlencoded":
            edited = _substitute_json(body, self.field, handle, secret)
            return edited if isinstance(edited, Deny) else Edits(body=edited)
        if not body.isascii():
            return Deny(Reason.BODY_UNREADABLE, "a form body is ASCII")
        pairs = substitute_pair(body.decode("ascii"), self.field, handle, secret)
        return pairs if isinstance(pairs, Deny) else Edits(body=pairs.encode("ascii"))

    def buffers(self, head: RequestHead) -> int:
        return self.max_bytes

    @property
    def place(self) -> str:
        return f"the body's field {self.field}"

    def terms(self) -> Mapping[str, int]:
        return {f"the size of bodies with {self.place}": self.max_bytes}


def _media(head: RequestHead, accepted: frozenset[str]) -> str | Deny:
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
    if media not in accepted or not known:
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
        return Deny(Reason.HANDLE_MISPLACED, "the handle must appear once in the body, without escapes")
    edited = body.replace(needle, json.dumps(secret)[1:-1].encode("ascii"))
    # Read again: `{"field": "\u0063ch_…", "note": "cch_…"}` would have put the secret into the note.
    if _field(edited, field) != secret:
        return Deny(Reason.HANDLE_MISPLACED, f"the handle is not in JSON field {field}", alarm=True)
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


class BodySpec(Strict):
    field: Token = Field(description="Field of a JSON or form body that holds the handle.")
    max: Size = Field(
        1 << 20, description="The largest body that is buffered; larger ones are refused. Default: 1MiB."
    )


def _build(values: Mapping[str, Any]) -> BodyInjection:
    spec: BodySpec = values["body"]
    return BodyInjection(spec.field, max_bytes=spec.max)


WAY = Way(
    keys={"body": (BodySpec, "One field of an uncompressed JSON or form body, which is buffered.")},
    build=_build,
    parts={"body": BodySpec},
    examples={"body": "body: {field: token, max: 1MiB}", "field": "field: token"},
)
