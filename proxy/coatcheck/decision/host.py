"""One reading of a host name or address (I7). Every host in Coatcheck passes through here once.

Facts:
- DNS ignores case, so upper-case letters are folded. Everything else that two parsers could read
  differently is refused, not repaired: trailing dots, user-info, zone ids, percent signs, NUL (which
  hid `evil\\x00.allowed.com` from srt's suffix check for five months), non-ASCII look-alikes.
- C libraries read `127.1`, `0x7f.1`, `2130706433` and `010.0.0.1` as IPv4 addresses (inet_aton), and
  browsers read any name whose last label is a number as one (WHATWG URL, "ends in a number"). Only the
  strict dotted quad is an address here, and no name may end in a number.
- No message repeats its input: a sandbox may have put a handle there, and messages reach the audit log.
"""

import ipaddress
from functools import lru_cache

import idna

from coatcheck.decision.outside import OutsideText

MAX_HOST = 253
"""Characters of a name without its root dot (RFC 1035 2.3.4 leaves 253 of 255 octets)."""
MAX_LABEL = 63
MAX_AUTHORITY = MAX_HOST + len(":65535")

_CACHE = 4096
"""Entries of at most 259 characters each: about 2 MiB. A fleet's sessions talk to tens of hosts."""

_LDH = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
_HEX = frozenset("0123456789abcdef")


class HostRefused(ValueError):
    """This text is not one host to every reader. The message holds nothing of the text.

    `instead` is what the writer of a policy probably meant, or "". It repeats the text: never log it.
    """

    def __init__(self, message: str, instead: str = "") -> None:
        super().__init__(message)
        self.instead = instead


def canonical_host(text: OutsideText) -> str:
    """`text` in the one form that Coatcheck compares: lower-case LDH name, strict IPv4, or
    compressed IPv6 without brackets. Idempotent. Raises HostRefused."""
    if len(text) > MAX_HOST:
        raise HostRefused(f"the host is longer than {MAX_HOST} characters")
    return _canonical(text)


def split_authority(text: OutsideText, default_port: int | None) -> tuple[str, int]:
    """Host and port of a Host header, `:authority` or CONNECT target: `name`, `name:port`,
    `[v6]`, `[v6]:port`. With `default_port` None the port must be there (CONNECT, RFC 9110 9.3.6).

    Raises HostRefused.
    """
    if len(text) > MAX_AUTHORITY:
        raise HostRefused(f"the authority is longer than {MAX_AUTHORITY} characters")
    return _split(text, default_port)


@lru_cache(maxsize=_CACHE)
def _split(text: str, default_port: int | None) -> tuple[str, int]:
    if text.startswith("["):
        literal, bracket, rest = text.partition("]")
        if not bracket:
            raise HostRefused("the bracket of the IPv6 address is not closed")
        host, colon, port = literal + bracket, rest[:1], rest[1:]
        if rest and colon != ":":
            raise HostRefused("something other than a port follows the IPv6 address")
    else:
        host, colon, port = text.partition(":")
        if ":" in port:
            raise HostRefused("an IPv6 address needs brackets here")
    if not colon:
        if default_port is None:
            raise HostRefused("the port is missing")
        return canonical_host(host), default_port
    return canonical_host(host), _port(port)


def _port(text: str) -> int:
    # int() alone would take "+443", "4_43", " 443" and Arabic digits.
    if not (text.isascii() and text.isdigit()) or len(text) > 5 or text[0] == "0" or int(text) > 65535:
        raise HostRefused("the port is not a decimal number from 1 to 65535")
    return int(text)


@lru_cache(maxsize=_CACHE)
def _canonical(text: str) -> str:
    if not text:
        raise HostRefused("the host is empty")
    if not text.isascii():
        raise HostRefused("the host has letters outside ASCII; its A-label form is needed", _a_label(text))
    if ":" in text or text[0] == "[":
        return _ipv6(text)
    host = text.lower()
    labels = host.split(".")
    if labels[-1] == "" and len(labels) > 1:
        raise HostRefused("the host ends in a dot", _or_nothing(host.rstrip(".")))
    if _is_number(labels[-1]):
        return _ipv4(host, labels)
    for label in labels:
        _check_label(label)
    return host


def _check_label(label: str) -> None:
    if not label:
        raise HostRefused("the host has an empty label")
    if len(label) > MAX_LABEL:
        raise HostRefused(f"a label of the host is longer than {MAX_LABEL} characters")
    if not _LDH.issuperset(label):
        raise HostRefused("the host has a character other than letters, digits, hyphens and dots")
    if label[0] == "-" or label[-1] == "-":
        raise HostRefused("a label of the host begins or ends with a hyphen")
    if label.startswith("xn--"):
        try:
            # Both ways: several punycode strings may decode to one name, only one of them is canonical.
            genuine = idna.alabel(idna.ulabel(label)) == label.encode()
        except (idna.IDNAError, UnicodeError):
            genuine = False
        if not genuine:
            raise HostRefused("an xn-- label of the host is not valid IDNA 2008")


def _is_number(label: str) -> bool:
    if label.isdigit():
        return True
    return label.startswith("0x") and _HEX.issuperset(label[2:])


def _ipv4(host: str, labels: list[str]) -> str:
    strict = len(labels) == 4 and all(
        part.isdigit() and len(part) <= 3 and (part == "0" or part[0] != "0") and int(part) <= 255
        for part in labels
    )
    if not strict:
        raise HostRefused("the host ends in a number but is not an IPv4 address of four decimal parts")
    return host


def _ipv6(text: str) -> str:
    if text.startswith("[") != text.endswith("]"):
        raise HostRefused("the brackets of the IPv6 address do not match")
    bare = text[1:-1] if text.startswith("[") else text
    if "%" in bare:
        raise HostRefused("an IPv6 address with a zone means a different host on every machine")
    try:
        address = ipaddress.IPv6Address(bare)
    except ValueError:
        raise HostRefused("the host is not a valid IPv6 address") from None
    if address.ipv4_mapped is not None:
        raise HostRefused("an IPv4 address is dressed as IPv6", str(address.ipv4_mapped))
    return address.compressed


def _a_label(text: str) -> str:
    try:
        return _or_nothing(idna.encode(text, uts46=True).decode())
    except (idna.IDNAError, UnicodeError):
        return ""


def _or_nothing(host: str) -> str:
    try:
        return canonical_host(host)
    except HostRefused:
        return ""
