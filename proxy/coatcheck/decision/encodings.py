"""In which forms a secret can come back: every verbatim echo that the scrubber must find (I1).

Plain, base64 (as in Basic), percent-encoded, JSON- and HTML-escaped; base64 also inside the other
three, because an echoed header ends up in a URL or in a JSON error. Deeper nesting and any other
transformation need an upstream that colludes, which the threat model names as out of reach.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator
from html import escape
from urllib.parse import quote

# What the common writers leave unescaped besides letters, digits and `_.-~`: strict RFC 3986,
# Python's default, ECMAScript's encodeURIComponent, a path segment (sub-delims, RFC 3986 3.3), encodeURI.
_PERCENT_SAFE = ("", "/", "!'()*", "!$&'()*+,;=:@", "!#$&'()*+,/:;=?@")

# What is written as \uXXXX besides what JSON demands: nothing, Go's encoding/json, .NET's System.Text.Json.
_JSON_ESCAPED = ("", "<>&", "<>&'\"+`")

# Most API keys and their base64: no writer escapes any of it, so it has one form.
_UNESCAPED = re.compile(rb"[A-Za-z0-9_.-]+")


def encodings(secret: bytes, basic_usernames: Iterable[str] = ()) -> frozenset[bytes]:
    """All byte strings as which `secret` may stand in a response."""
    return frozenset(form for _, form in named_encodings(secret, basic_usernames))


def named_encodings(secret: bytes, basic_usernames: Iterable[str] = ()) -> Iterator[tuple[str, bytes]]:
    """The same, each with its name (`plain`, `base64`, `percent`, `escaped`, …); some more than once."""
    for raw in {secret, *_other_charset(secret)}:
        forms = [("plain", raw), *(("base64", form) for form in set(_base64_forms(raw, basic_usernames)))]
        for name, form in forms:
            yield name, form
            if _UNESCAPED.fullmatch(form):
                continue
            inside = "" if name == "plain" else f"{name} in "
            for written in set(_percent_forms(form)):
                yield f"{inside}percent", written
            for written in set(_escaped_forms(form)):
                yield f"{inside}escaped", written


def _other_charset(secret: bytes) -> Iterator[bytes]:
    """The secret as latin-1, in which HTTP/1 headers are sometimes read, if it is UTF-8 text."""
    try:
        yield secret.decode("utf-8").encode("latin-1")
    except UnicodeError:
        return


def _base64_forms(raw: bytes, basic_usernames: Iterable[str]) -> Iterator[bytes]:
    """The characters which do not depend on what surrounds the secret, at each of the three alignments.

    A character that mixes bits of the secret with bits of a neighbour cannot be in a pattern: at most
    4 bits of the secret remain at either end. Where the neighbours are known (nothing, or
    `username:`), the whole encoding is a pattern too, and nothing remains.
    """
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for alignment in range(3):
            encoded = encode(bytes(alignment) + raw)
            before = (0, 2, 3)[alignment]
            after = (0, 3, 2)[(alignment + len(raw)) % 3]
            yield encoded[before : len(encoded) - after]
        for known in (b"", *(name.encode() + b":" for name in basic_usernames)):
            whole = encode(known + raw)
            yield whole
            yield whole.rstrip(b"=")


def _percent_forms(form: bytes) -> Iterator[bytes]:
    """Percent-encoded by the common writers, with upper- and lower-case hex, and as a form field."""
    for safe in _PERCENT_SAFE:
        upper = quote(form, safe=safe).encode("ascii")
        # application/x-www-form-urlencoded: `+` for space; the WHATWG writer escapes `~` as well.
        plus = upper.replace(b"%20", b"+")
        for written in {upper, plus, plus.replace(b"~", b"%7E")}:
            yield written
            yield re.sub(rb"%[0-9A-F]{2}", lambda found: found[0].lower(), written)


def _escaped_forms(form: bytes) -> Iterator[bytes]:
    """Inside a JSON string or an HTML page, as the common writers put it there."""
    try:
        text = form.decode("utf-8")
    except UnicodeDecodeError:
        return
    for ascii_only in (True, False):
        for wanted in _JSON_ESCAPED:
            plain = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
            for character in wanted:
                # a quote never stands bare in a JSON string, so these two bytes are always one escape
                written = '\\"' if character == '"' else character
                plain = plain.replace(written, f"\\u{ord(character):04x}")
            for slashes in {plain, plain.replace("/", "\\/")}:
                yield slashes.encode("utf-8")
                yield re.sub(r"\\u[0-9a-f]{4}", _upper_hex, slashes).encode("utf-8")
    page = escape(text)
    yield page.encode("utf-8")
    yield page.replace("&#x27;", "&#39;").replace("&quot;", "&#34;").encode("utf-8")
    yield escape(text, quote=False).encode("utf-8")


def _upper_hex(found: re.Match[str]) -> str:
    return "\\u" + found[0][2:].upper()
