"""The forms of a secret that are looked for in each reading of a response.

`readings` undoes escapes, and encodings within encodings. The few forms here are looked for as they are,
because a part of a secret may stand in one of them at any place: the secret itself, its hex, its Base64 at
each of three alignments, and, if it is not ASCII, its latin-1, UTF-16 and UTF-32.

What is public is left out: a PEM file's first and last line, the keys of a JSON document, the scheme and host
of a URL, and a prefix that all tokens of a kind share.
"""

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

RUN: Final = 12
"""Characters of a secret in a row that are masked wherever they stand; fewer may remain at a cut."""
_LEAST_BEHIND_A_PREFIX: Final = 16
_BLANK: Final = bytes(range(0x21)) + b"\x7f"

# `sk-proj-`, `ghp_`, `github_pat_`, `sk-ant-api03-`: short words, and behind them what looks random. The
# first part of a JSON Web Token says how it is signed.
_PREFIX: Final = re.compile(
    rb"(?:(?:[a-z]{1,7}[0-9]{0,2}[_-]){1,3}(?=[^-_]{0,11}[A-Z0-9])|A[KS]IA|AIza|eyJ[A-Za-z0-9_-]{10,200}\.(?=eyJ))"
)
_PUBLIC: Final = re.compile(
    rb"-----(?:BEGIN|END) [A-Z0-9 ]+-----"
    rb'|"[^"\\]{1,64}"\s*:\s*"?'
    rb"|\\[nr]"
    rb"|[a-z][a-z0-9+.-]{1,15}://(?:[A-Za-z0-9.-]+(?::[0-9]+)?(?=[/?#\"\s]|$))?"
    rb'|(?<=[^/])@[A-Za-z0-9.-]+(?::[0-9]+)?(?=[/?#"\s]|$)'
)
_AROUND_VALUES: Final = b'", \t\r\n{}[]'
"""What stands between values in JSON: with it a value that is shown whole would count as a part."""
_STRUCTURED: Final = (b"-----BEGIN ", b"{", b"://")
_ANY_CASE: Final = re.compile(rb"[0-9a-fA-F-]+")


@dataclass(frozen=True, slots=True)
class Form:
    """A text that stands for a secret, or for one part of it, in a reading."""

    name: str
    """`plain`, `hex`, `base64`, `utf-16`"""
    text: bytes = field(repr=False)
    """Without blanks, as readings are."""
    lead: bytes = field(repr=False)
    """Public text right before it, which is masked along with its beginning."""
    density: float
    """Characters of the secret for each one of the text."""


def forms_of(secret: bytes) -> Iterator[Form]:
    """Everything to look for. Parts of fewer than `RUN` characters cannot be told from other text."""
    for lead, part in _private_parts(secret):
        for text in _spellings(part):
            yield Form("plain", text.translate(None, _BLANK), lead.translate(None, _BLANK), 1.0)
            digits = text.hex().encode()
            yield Form("hex", digits, lead.hex().encode(), 0.5)
            yield Form("hex", digits.upper(), lead.hex().upper().encode(), 0.5)
        for raw in dict.fromkeys((part, *_other_charset(part))):
            for text in _base64_forms(raw):
                yield Form("base64", text, b"", 0.75)
        yield from _wide(part)


def _private_parts(secret: bytes) -> list[tuple[bytes, bytes]]:
    """The parts that are secret, each with the public text before it."""
    if any(sign in secret[:4096] for sign in _STRUCTURED):
        in_json = secret.lstrip()[:1] == b"{"
        parts = [
            part
            for part in (each.strip(_AROUND_VALUES) if in_json else each for each in _PUBLIC.split(secret))
            if len(part.translate(None, _BLANK)) >= RUN
            and not (in_json and re.fullmatch(rb"[a-z_,\"\s{}]+", part))
        ]
        return [(b"", part) for part in parts] or [(b"", secret)]
    prefix = _PREFIX.match(secret)
    if prefix and len(secret) - prefix.end() >= _LEAST_BEHIND_A_PREFIX:
        return [(prefix[0], secret[prefix.end() :])]
    return [(b"", secret)]


def _spellings(part: bytes) -> Iterator[bytes]:
    """As it is; in latin-1, in which HTTP/1 headers are sometimes read; and, where letter case says nothing
    (a UUID, a number in hex), in either case and without dashes."""
    yield part
    if b" " in part:
        yield part.replace(b" ", b"+")  # a form field
    yield from _other_charset(part)
    if _ANY_CASE.fullmatch(part):
        yield from {part.lower(), part.upper()} - {part}
        bare = part.replace(b"-", b"")
        if bare != part:
            yield from {bare.lower(), bare.upper()}


def _other_charset(part: bytes) -> Iterator[bytes]:
    """The secret as latin-1, if it is UTF-8 text beyond ASCII."""
    try:
        other = part.decode("utf-8").encode("latin-1")
    except UnicodeError:
        return
    if other != part:
        yield other


def _wide(part: bytes) -> Iterator[Form]:
    """UTF-16 and UTF-32 of what is not ASCII; the zeros of ASCII are left out of every reading."""
    if part.isascii():
        return
    try:
        text = part.decode("utf-8")
    except UnicodeDecodeError:
        return
    for charset in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
        wide = text.encode(charset).translate(None, _BLANK)
        yield Form("utf-16", wide, b"", len(text) / len(wide))


def _base64_forms(raw: bytes) -> Iterator[bytes]:
    """The characters which do not depend on what surrounds the secret, at each of the three alignments.

    A character that mixes bits of the secret with bits of a neighbour cannot be looked for: at most 4 bits
    of the secret remain at either end.
    """
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for alignment in range(3):
            encoded = encode(bytes(alignment) + raw)
            before = (0, 2, 3)[alignment]
            after = (0, 3, 2)[(alignment + len(raw)) % 3]
            yield encoded[before : len(encoded) - after]
