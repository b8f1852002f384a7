"""In which forms a secret can come back: every verbatim echo that the scrubber must find (I1).

Plain, base64 (as in Basic), percent-encoded, JSON- and HTML-escaped; base64 also inside the other
three, because an echoed header ends up in a URL or in a JSON error; hex, as dumps have it. Deeper nesting
and any other transformation need an upstream that colludes, which the threat model names as out of reach.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator
from html import escape
from urllib.parse import quote

_PERCENT_SAFE = (
    "",  # RFC 3986's unreserved characters alone
    "/",  # Python's quote
    "*",  # forms: URLSearchParams, Java's URLEncoder
    "!'()*",  # encodeURIComponent, node's querystring
    "*+/@",  # escape()
    "!$'()*,/:?@",  # yarl, and so aiohttp, for a query's value
    "!$&'()*+,;=:@",  # a path's segment (sub-delims, RFC 3986 3.3)
    "!$&'()*+,/:;=@",  # a path
    "!$&'()*+,/:;=?@",  # a query: urllib3, requests, yarl
    "!#$&'()*+,/:;=?@",  # encodeURI
    "!$%&()*+,/:;=?@[\\]^`{|}",  # WHATWG URL: a query of http(s), a path, a fragment
    "!$%&'()*+,/:;=@[]^|",
    "!#$%&'()*+,/:;=?@[\\]^{|}",
    "!$%&'()*+,/:;=?@[\\]^`{|}",  # httpx: a query, a path
    "!$%&'()*+,/:;=?@[\\]^|",
)
"""What the common writers leave unescaped besides letters, digits and `_.-~`. Each was asked."""

# What is written as \uXXXX besides what JSON demands: nothing, Go's encoding/json, .NET's System.Text.Json.
_JSON_ESCAPED = ("", "<>&", "<>&'\"+`")

_MORE_OF_PAGES: tuple[dict[int, str], ...] = (
    {},
    {ord("+"): "&#43;"},  # Go's html/template
    {ord("+"): "&#x2B;"},  # .NET
    {ord("/"): "&#x2F;", ord("`"): "&#x60;", ord("="): "&#x3D;"},  # mustache.js
    {ord("`"): "&#x60;", ord("="): "&#x3D;"},  # handlebars
)
"""What some writers of pages escape besides quotes and `&<>`: base64 has all of it."""

_QUOTES = (
    ('"', "'"),  # outside of attributes
    ("&quot;", "'"),  # PHP until 8.0
    ("&quot;", "&#x27;"),  # Python's html, React
    ("&quot;", "&#39;"),  # .NET, lodash, XML writers
    ("&quot;", "&#039;"),  # PHP
    ("&quot;", "&apos;"),  # XML, PHP for HTML 5
    ("&#34;", "&#39;"),  # Go, MarkupSafe
)
"""How pages and XML write the two quotes."""

# Most API keys and their base64: no writer escapes any of it, so it has one form.
_UNESCAPED = re.compile(rb"[A-Za-z0-9_.-]+")


def encodings(secret: bytes, basic_usernames: Iterable[str] = ()) -> frozenset[bytes]:
    """All byte strings as which `secret` may stand in a response."""
    return frozenset(form for _, form in named_encodings(secret, basic_usernames))


def named_encodings(secret: bytes, basic_usernames: Iterable[str] = ()) -> Iterator[tuple[str, bytes]]:
    """The same, each with its name (`plain`, `base64`, `percent`, `escaped`, …); some more than once."""
    for raw in {secret, *_other_charset(secret)}:
        forms = [("plain", raw), *(("base64", form) for form in set(_base64_forms(raw, basic_usernames)))]
        yield "hex", raw.hex().encode()
        yield "hex", raw.hex().upper().encode()
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
    specials = {char for char in form.decode("latin-1") if not char.isalnum()}
    for safe in {"".join(sorted(specials & set(safe))) for safe in _PERCENT_SAFE}:
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
    bare = escape(text, quote=False)
    for double, single in _QUOTES:
        quoted = bare.replace('"', double).replace("'", single)
        for more in _MORE_OF_PAGES:
            yield quoted.translate(more).encode("utf-8")


def _upper_hex(found: re.Match[str]) -> str:
    return "\\u" + found[0][2:].upper()
