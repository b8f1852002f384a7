"""How programs write a text into an answer: layers that compose, and the ways to cut what comes out."""

import base64
import codecs
import html
import json
import quopri
import re
from collections.abc import Callable
from urllib.parse import quote, quote_plus


def _each(form: str) -> Callable[[bytes], bytes]:
    return lambda text: "".join(form % code for code in text).encode()


def _json(text: bytes) -> bytes:
    return json.dumps(text.decode("latin-1")).encode()


def _but_letters(form: str) -> Callable[[bytes], bytes]:
    return lambda text: b"".join(
        bytes([code]) if bytes([code]).isalnum() else (form % code).encode() for code in text
    )


def _dumped(line: str) -> Callable[[bytes], bytes]:
    def write(text: bytes) -> bytes:
        lines = []
        for at in range(0, len(text), 16):
            piece = text[at : at + 16]
            shown = "".join(chr(code) if 0x20 <= code < 0x7F else "." for code in piece)
            lines.append(line.format(at=at, pairs=piece.hex(" "), words=piece.hex(" ", -2), shown=shown))
        return "\n".join(lines).encode() + b"\n"

    return write


ESCAPES: dict[str, Callable[[bytes], bytes]] = {
    "json": _json,
    "json of PHP": lambda text: _json(text).replace(b"/", b"\\/"),
    "json of Gson": lambda text: re.sub(rb"[<>&='+]", lambda f: b"\\u%04x" % f[0][0], _json(text)),
    "json of .NET": lambda text: re.sub(rb"[<>&='+]", lambda f: b"\\u%04X" % f[0][0], _json(text)),
    "json, every character": _each("\\u%04x"),
    "percent": lambda text: quote(text, safe="").encode(),
    "percent, lower case": lambda text: re.sub(
        rb"%..", lambda f: f[0].lower(), quote(text, safe="").encode()
    ),
    "percent, every character": _each("%%%02X"),
    "form": lambda text: quote_plus(text).encode(),
    "html": lambda text: html.escape(text.decode("latin-1")).encode(),
    "html of Twig": _but_letters("&#x%02X;"),
    "html of OWASP": _but_letters("&#x%x;"),
    "html, decimal": _each("&#%d;"),
    "html, hex": _each("&#x%X;"),
    "escapejs of Django": _but_letters("\\u%04X"),
    "JavaScript": _but_letters("\\x%02X"),
    "JavaScript, braces": _each("\\u{%x}"),
    "css": _but_letters("\\%x "),
    "css, six digits": _but_letters("\\%06x"),
    "octal": _each("\\%03o"),
    "backslashes": _but_letters("\\%c"),
    "repr": lambda text: repr(text).encode(),
    "unicode_escape": lambda text: codecs.encode(text.decode("latin-1"), "unicode_escape"),
    "quoted-printable": lambda text: quopri.encodestring(b"words before it, and more of them " + text),
}
"""Each character is written as itself or as an escape."""

ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "base64": base64.b64encode,
    "base64 behind a name": lambda text: base64.b64encode(b"user:" + text),
    "base64 in the middle": lambda text: base64.b64encode(b"its key: " + text + b" it was"),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(b"a" + text).rstrip(b"="),
    "base64 of MIME": lambda text: base64.encodebytes(
        b"a line of text that comes before " + text + b" and after"
    ),
    "hex": lambda text: text.hex().encode(),
    "hex, upper case": lambda text: text.hex().upper().encode(),
    "hex with colons": lambda text: text.hex(":").encode(),
    "hex with dashes": lambda text: text.hex("-").upper().encode(),
    "hex with blanks": lambda text: text.hex(" ").encode(),
    "hex in C": lambda text: ", ".join(f"0x{code:02x}" for code in text).encode(),
    "numbers": lambda text: json.dumps(list(text)).encode(),
    "numbers in Go": lambda text: str(list(text)).replace(",", "").encode(),
    "hexdump -C": _dumped("{at:08x}  {pairs:<48}  |{shown}|"),
    "xxd": _dumped("{at:08x}: {words:<40} {shown}"),
    "utf-16": lambda text: text.decode("latin-1").encode("utf-16"),
    "utf-16, big end first": lambda text: text.decode("latin-1").encode("utf-16-be"),
    "utf-32": lambda text: text.decode("latin-1").encode("utf-32"),
}
"""The text as a whole is written in another alphabet."""

WRITERS = ESCAPES | ENCODINGS
