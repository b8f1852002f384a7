"""A method in a form: Rails, Laravel and Symfony carry out a POST whose form says `_method=delete` as DELETE.

The search reads a body as it streams, in steps implemented in C, and remembers little. A name and a value
that chunks cut are found with the second one, before that leaves; no server runs a form that is not whole.

Names are read as leniently as any server reads them. PHP reads a dot, a space and a bracket in a name as `_`,
drops spaces before it, and ends it at a NUL. Rack drops backslashes in a part's name, and reads a body
without a content type as a form.
"""

import re
from typing import Final

from coatcheck.decision.message import RequestHead
from coatcheck.decision.steering import METHODS

_FORM: Final = ("application/x-www-form-urlencoded", "")
_PARTS: Final = "multipart/form-data"
_NEAR: Final = 512
"""Bytes that are looked at again with the next chunk: a field's name, the rest of its part's head, a
method."""
_SIGNS: Final = "abcdefghijklmnopqrstuvwxyz_-"
_ESCAPES: Final = tuple(
    {f"%{ord(each):02x}".encode(): sign.encode() for sign in _SIGNS for each in {sign, sign.upper()}}.items()
)
_SIGN: Final = rb"(?:%[0-9a-f]{2}|[^a-z0-9%&=;\"'\r\n])"
"""What does not count in a name (`steering.overrides`)."""
_NAME: Final = (
    rb"(?:S{1,16}method|S{0,16}(?:xS{0,4})?httpS{0,4}method(?:S{0,4}override)?|S{0,16}methodS{0,4}override)"
    rb"(?:(?:%00|\0)[^&=;\"'\r\n]{0,100})?S{0,4}(?![a-z0-9])"
).replace(b"S", _SIGN)
_VALUE: Final = rb"(" + "|".join(sorted(METHODS)).lower().encode() + rb")(?=[&;\s\"']|\Z)"
_FIELD: Final = re.compile(rb"[&;]" + _NAME + rb"=" + _VALUE)
"""In lower case: `&_method=delete`. Each repetition is bounded."""
_PART: Final = re.compile(
    rb"(?<!file)name\t{0,4}=\t{0,4}[\"']?" + _NAME + rb"(?:(?!\r?\n\r?\n)[\s\S]){0,100}+"
    rb"(?:\r?\n\r?\n" + _VALUE + rb"|(?!\r?\n\r?\n)[\s\S])"
)
"""A part of that name, the rest of its head, its content. The group is empty where the head goes on: the
method would be out of sight, so it may be any."""


class FormMethods:
    """Of one body. `feed` answers with the methods that what came so far asks for."""

    def __init__(self, parts: bool) -> None:
        self._parts = parts
        self._tail = b"&"

    @classmethod
    def of(cls, head: RequestHead) -> "FormMethods | None":
        """None for what no server reads a method from."""
        if head.method != "POST" or head.end_stream:
            return None
        media = (head.get("content-type") or "").partition(";")[0].strip().lower()
        parts = media.startswith(_PARTS)
        return cls(parts) if parts or media in _FORM or media.startswith(_FORM[0]) else None

    def feed(self, chunk: bytes) -> frozenset[str]:
        text = (self._tail + chunk).lower().translate(None, b" +\\")
        if b"%" in text:
            text = text.replace(b"%20", b"")
        self._tail = text[-_NEAR:]  # without the spaces, of which any number may stand before a name
        if b"%" in text:
            for escape, sign in _ESCAPES:
                text = text.replace(escape, sign)
        if b"method" not in text:
            return frozenset()
        found = set((_PART if self._parts else _FIELD).findall(text))
        return METHODS if b"" in found else frozenset(each.decode().upper() for each in found)
