"""A method in a form: Rails, Laravel and Symfony carry out a POST whose form says `_method=delete` as DELETE.

The body is searched as it streams, in steps implemented in C, and little of it is kept. A name or value that
is cut in two is found when the second chunk comes, before that chunk leaves. That is in time, because no
server acts on an incomplete form.
"""

import re
from typing import Final

from coatcheck.decision.message import RequestHead
from coatcheck.decision.steering import METHODS

_FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data")
_NEAR: Final = 512
"""Bytes that are looked at again with the next chunk: a field's name, the rest of its part's head, a
method."""
_SIGNS: Final = "abcdefghijklmnopqrstuvwxyz_-"
_ESCAPES: Final = tuple(
    {f"%{ord(each):02x}".encode(): sign.encode() for sign in _SIGNS for each in {sign, sign.upper()}}.items()
)
_NAME: Final = rb"(?:[_-]method|[_-]?(?:x[_-]?)?http[_-]?method(?:[_-]?override)?|[_-]?method[_-]?override)"
_FIELD: Final = re.compile(
    rb"(?:[&;]|name=[\"']?)"
    + _NAME
    + rb"(?:=|[\"']?[^&]{0,100}?\r\n\r\n)("
    + "|".join(sorted(METHODS)).lower().encode()
    + rb")(?=[&;\s\"']|\Z)"
)
"""In lower case: `&_method=delete`, or a part of that name and its content. Each repetition is bounded."""


class FormMethods:
    """Of one body. `feed` answers with the methods that what came so far asks for."""

    def __init__(self) -> None:
        self._tail = b"&"

    @classmethod
    def of(cls, head: RequestHead) -> "FormMethods | None":
        """None for what no server reads a method from."""
        if head.method != "POST" or head.end_stream:
            return None
        media = (head.get("content-type") or "").strip().lower()
        return cls() if media.startswith(_FORMS) else None

    def feed(self, chunk: bytes) -> frozenset[str]:
        text = (self._tail + chunk).lower()
        self._tail = text[-_NEAR:]
        if b"%" in text:
            for escape, sign in _ESCAPES:
                text = text.replace(escape, sign)
        if b"method" not in text:
            return frozenset()
        return frozenset(found.decode().upper() for found in set(_FIELD.findall(text)))
