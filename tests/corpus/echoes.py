"""Whether a secret, or a part of one, stands in what a sandbox saw: found by decoders of their own."""

import base64
import html
import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

PART: Final = 10
"""Letters of a secret that stand nowhere by chance: 59 bits."""
MOST: Final = 1 << 20
"""Bytes that are looked at in every reading; what is longer is looked at as it is."""

_CHUNK: Final = re.compile(rb"\r\n[0-9a-fA-F]{1,6}\r\n")
_UNICODE: Final = re.compile(rb"\\u00([0-9a-fA-F]{2})|\\x([0-9a-fA-F]{2})")
_SPACED_HEX: Final = re.compile(rb"(?:[0-9a-fA-F]{2}[ :]?){16,}")
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/_-]{16,}")


def found_in(seen: bytes, secrets: Mapping[str, str]) -> set[str]:
    """What of which secret, in words."""
    found = set()
    for reading, data in _readings(seen):
        for name, secret in secrets.items():
            if secret.encode() in data:
                found.add(f"the secret {name} ({reading})")
            elif any(part in data for part in _parts(secret)):
                found.add(f"a part of the secret {name} ({reading})")
    return found


def _parts(secret: str) -> list[bytes]:
    """Pieces of what is random in it: everybody knows how keys of its kind begin."""
    raw = secret.encode()[secret.rindex("-") + 1 :]
    return [raw[at : at + PART] for at in range(0, len(raw) - PART + 1, PART)]


def _readings(seen: bytes) -> Iterator[tuple[str, bytes]]:
    yield "as it is", seen
    if len(seen) > MOST:
        return
    joined = _CHUNK.sub(b"", seen)
    yield "over chunks", joined
    yield "over frames", bytes(byte for byte in joined if 0x20 <= byte < 0x7F)
    yield "percent-encoded", unquote_to_bytes(joined)
    yield "escaped", _UNICODE.sub(lambda found: bytes.fromhex((found[1] or found[2]).decode()), joined)
    yield "with entities", html.unescape(joined.decode("latin-1")).encode("latin-1", "replace")
    for found in _SPACED_HEX.finditer(joined):
        yield "in hex", bytes.fromhex(re.sub(rb"[ :]", b"", found[0]).decode())
    for word in _BASE64.finditer(
        html.unescape(unquote_to_bytes(joined).decode("latin-1")).encode("latin-1", "replace")
    ):
        text = word[0].translate(bytes.maketrans(b"-_", b"+/"))
        for shift in range(4):
            rest = text[shift:]
            yield "in Base64", base64.b64decode(rest[: len(rest) // 4 * 4])
