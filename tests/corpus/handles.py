"""What a case may write in braces beside a handle as it is: altered, forged, and written in other ways.

`{handle:vendor|claim:gen=2}` alters one without a key; `{ours:vendor,exp=-5}` is signed with the very key of
the proxy under test, as a bug in minting or a stolen state directory would give it; `{text:abc|times:9}`.
"""

import base64
import gzip
import hashlib
import hmac
import html
import json
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

import brotli
import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.corpus.expand import FILTERS, KINDS
from tests.corpus.proxies import Inside

_ATTACKER: Final = Ed25519PrivateKey.from_private_bytes(b"attacker" * 4)
_TIMES: Final = ("iat", "exp")


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decoded(segment: str) -> bytes:
    return base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))


def _parts(text: str) -> tuple[str, dict[str, Any], dict[str, Any], str]:
    """What stands before the token, its header, its claims, its signature."""
    start = text.index("cch_") + 4
    header, payload, signature = text[start:].split(".")
    return text[:start], json.loads(_decoded(header)), json.loads(_decoded(payload)), signature


def _token(before: str, header: Mapping[str, Any], payload: Mapping[str, Any] | bytes, signature: str) -> str:
    raw = payload if isinstance(payload, bytes) else _json(payload)
    return f"{before}{_encoded(_json(header))}.{_encoded(raw)}.{signature}"


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# --- without the key ------------------------------------------------------------------------------------


def header(text: str, change: str) -> str:
    """`alg=none`: one field of the header, the signature as it was. The value is JSON, or else a text."""
    before, head, claims, signature = _parts(text)
    name, _, value = change.partition("=")
    return _token(before, head | {name: _value(value)}, claims, signature)


def claim(text: str, change: str) -> str:
    """`gen=2`: one claim, the signature as it was."""
    before, head, claims, signature = _parts(text)
    name, _, value = change.partition("=")
    return _token(before, head, claims | {name: _value(value)}, signature)


def signed_by(text: str, whom: str) -> str:
    """Another signature: by `nobody`, `zeros`, the `attacker`'s own key, or `hs256` under the key's name."""
    before, head, claims, _ = _parts(text)
    signing = f"{_encoded(_json(head))}.{_encoded(_json(claims))}".encode()
    signature = {
        "nobody": b"",
        "zeros": bytes(64),
        "attacker": _ATTACKER.sign(signing),
        "hs256": hmac.new(str(head["kid"]).encode(), signing, hashlib.sha256).digest(),
    }[whom]
    return _token(before, head, claims, _encoded(signature))


def with_own_key(text: str, _: str) -> str:
    """RFC 7515's `jwk`: the attacker's public key in the header, and its signature."""
    before, head, claims, _signature = _parts(text)
    public = {"kty": "OKP", "crv": "Ed25519", "x": _encoded(_ATTACKER.public_key().public_bytes_raw())}
    return signed_by(_token(before, head | {"jwk": public}, claims, ""), "attacker")


def segment(text: str, which: str) -> str:
    """`0=`, `3=abc`, `2=A*9`: one of the token's segments replaced, or one more; `2=-`: without it."""
    start = text.index("cch_") + 4
    parts = text[start:].split(".")
    at, _, value = which.partition("=")
    letter, _, count = value.partition("*")
    value = letter * int(count or "1")
    parts[int(at) : int(at) + 1] = [value] if value != "-" else []
    return text[:start] + ".".join(parts)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


# --- with the key of the proxy under test -----------------------------------------------------------------


def ours(inside: Inside, wanted: str, _: Mapping[str, str]) -> str:
    """`vendor,exp=-5,gen=true`: the session's claims with changes, signed by the proxy's own key. Times are
    seconds from now; `sid=parent` names the session's parent. `-jti` leaves one out, `+nbf=1` is one more,
    `twice` has one twice, `raw=[1]` is all."""
    if inside.signing is None:
        raise ValueError("this proxy signs no handles")
    name, *changes = wanted.split(",")
    kid, key = inside.signing
    now = int(inside.now())
    claims: dict[str, Any] = {
        "iss": "coatcheck",
        "sid": inside.session,
        "cred": name,
        "gen": 1,
        "iat": now - 60,
        "exp": now + 600,
        "jti": "forged",
    }
    payload = b""
    for change in changes:
        what, _sign, value = change.partition("=")
        if what == "raw":
            payload = value.encode()
        elif what == "twice":
            payload = _json(claims)[:-1] + b',"sid":"%b"}' % inside.session.encode()
        elif change == "sid=parent":
            claims["sid"] = inside.parent
        elif what.startswith("-"):
            del claims[what[1:]]
        else:
            number = what in _TIMES and isinstance(_value(value), int)
            claims[what.removeprefix("+")] = now + int(value) if number else _value(value)
    payload = payload or _json(claims)
    head = _encoded(
        json.dumps({"alg": "EdDSA", "kid": kid, "typ": "cch+jwt"}, separators=(",", ":")).encode()
    )
    signing = f"{head}.{_encoded(payload)}"
    return f"cch_{signing}.{_encoded(key.sign(signing.encode()))}"


# --- ways to write a text -----------------------------------------------------------------------------------


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[str, str], str]:
    return lambda text, _: change(text.encode("latin-1")).decode("latin-1")


def _text(change: Callable[[str], str]) -> Callable[[str, str], str]:
    return lambda text, _: change(text)


def basic(text: str, username: str) -> str:
    return base64.b64encode(f"{username}:{text}".encode("latin-1")).decode()


def flipped(text: str, at: str) -> str:
    """Another letter at one place."""
    place = int(at) % len(text)
    return text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]


def every(text: str, write: str) -> str:
    """Each character written by a format: `%{:02x}` has no braces here, so `percent`, `unicode`, `entity`."""
    formats: dict[str, Callable[[int], str]] = {
        "percent": lambda code: f"%{code:02X}",
        "unicode": lambda code: f"\\u{code:04x}",
        "entity": lambda code: f"&#{code};",
        "hex": lambda code: f"{code:02x}",
        "spaced": lambda code: f"{code:02X} ",
        "wide": lambda code: f"{chr(code)}\0",
    }
    return "".join(formats[write](ord(each)) for each in text).strip()


def chunked(text: str, size: str) -> str:
    """HTTP/1 chunks of so many bytes, without the last one."""
    step = int(size)
    return "".join(
        f"{len(part):x}\r\n{part}\r\n" for at in range(0, len(text), step) if (part := text[at : at + step])
    )


def frame(text: str, how: str) -> str:
    """A WebSocket frame: its first byte in hex; `masked` as clients send (RFC 6455 5.3; the key is 0)."""
    first, _, masked = how.partition(",")
    size, mask = len(text), 0x80 if masked else 0
    if size < 126:
        length = bytes([mask | size])
    else:
        length = bytes([mask | 126]) + size.to_bytes(2, "big")
    head = bytes([int(first, 16)]) + length + (bytes(4) if masked else b"")
    return head.decode("latin-1") + text


def enveloped(text: str, flag: str) -> str:
    """A message of gRPC or Connect: its flag, its length, itself."""
    return bytes([int(flag), *len(text).to_bytes(4, "big")]).decode("latin-1") + text


def compressed(text: str, how: str) -> str:
    raw = text.encode("latin-1")
    made: dict[str, Callable[[], bytes]] = {
        "gzip": lambda: gzip.compress(raw, mtime=0),
        "deflate": lambda: zlib.compress(raw),
        "br": lambda: brotli.compress(raw),
        "zstd": lambda: zstandard.compress(raw),
    }
    return bytes(made[how]()).decode("latin-1")


FILTERS.update(
    {
        "header": header,
        "claim": claim,
        "signed_by": signed_by,
        "with_own_key": with_own_key,
        "segment": segment,
        "base64": _bytes(base64.b64encode),
        "base64url": _bytes(base64.urlsafe_b64encode),
        "basic": basic,
        "percent": _text(lambda text: quote(text, safe="", encoding="latin-1")),
        "quote": lambda text, safe: quote(text, safe=safe, encoding="latin-1"),
        "lower_hex": _text(lambda text: re.sub("%..", lambda found: found[0].lower(), text)),
        "json": _text(lambda text: json.dumps(text)[1:-1]),
        "html": _text(html.escape),
        "every": every,
        "upper": _text(str.upper),
        "lower": _text(str.lower),
        "reverse": _text(lambda text: text[::-1]),
        "first": lambda text, count: text[: int(count)],
        "rest": lambda text, count: text[int(count) :],
        "upto": lambda text, end: text[: int(end)],
        "last_segment": _text(lambda text: text.rpartition(".")[2]),
        "interleave": lambda text, between: between.join(text),
        "flip": flipped,
        "prefix": lambda text, before: before + text,
        "suffix": lambda text, after: text + after,
        "times": lambda text, count: text * int(count),
        "replace": lambda text, pair: text.replace(pair.partition(",")[0], pair.partition(",")[2]),
        "charset": lambda text, name: text.encode(name).decode("latin-1"),
        "chunked": chunked,
        "frame": frame,
        "enveloped": enveloped,
        "compressed": compressed,
        "hmac_sha256": lambda key, message: hmac.new(
            key.encode(), message.encode("latin-1"), hashlib.sha256
        ).hexdigest(),
        "masked": _text(lambda text: "*" * len(text)),
    }
)
KINDS["ours"] = ours
KINDS["text"] = lambda _, text, __: text
