"""Is a ClientHello complete? Asked before it is parsed, and bounded in bytes, records and time (I9). Which
host does it name? Read in one way only (I7).

mitmproxy's reader starts again with each byte that arrives and waits for as many bytes as the hello
announces, up to 16 MiB (RFC 8446 4: 24 bits); in one-byte records and one-byte segments that is a minute of
CPU. It skips server names that it does not like and takes the next one, which a server may not do: a hello
that is forwarded unopened would be judged by one name and routed by another.
"""

from mitmproxy.tls import ClientHello

from coatcheck.decision.host import HostRefused, canonical_host

HELLO_BYTES = 16_384
"""A hello with post-quantum key shares has under 2 KiB; one TLS record holds 16 KiB."""
HELLO_RECORDS = 16
"""Real ones come in one; some clients cut them into a handful, so that middleboxes do not read them."""

_HANDSHAKE, _CLIENT_HELLO = 0x16, 0x01
_SERVER_NAME = 0
_NAME_HEAD = 5
"""Bytes before the name: the list's length, the name's type (0: host), its length (RFC 6066 3)."""


def is_whole(data: bytes | bytearray) -> bool:
    """False while more must come. ValueError when no ClientHello within the bounds can come of it."""
    start, have, at = b"", 0, 0
    for _ in range(HELLO_RECORDS):
        _check_record(data[at : at + 3])
        if len(data) < at + 5:
            return False
        length = int.from_bytes(data[at + 3 : at + 5])
        body = data[at + 5 : at + 5 + length]
        start += bytes(body[: 4 - len(start)])
        if length == 0 or (start and start[0] != _CLIENT_HELLO):
            raise ValueError("something other than a ClientHello")
        size = 4 + int.from_bytes(start[1:4]) if len(start) == 4 else 0
        if size > HELLO_BYTES:
            raise ValueError("endless ClientHello")
        if len(body) < length:
            return False
        have += length
        if size and have >= size:
            return True
        at += 5 + length
    raise ValueError("a ClientHello in too many records")


def _check_record(head: bytes | bytearray) -> None:
    """As much of a record's type and version as is there."""
    for byte, allowed in zip(head, ((_HANDSHAKE,), (3,), (0, 1, 2, 3)), strict=False):
        if byte not in allowed:
            raise ValueError("no TLS handshake")


def server_name(hello: ClientHello) -> str | None:
    """The canonical host that the hello names, None where it names none. Raises HostRefused for more than
    one name, for what is no host, and for what surrounds them."""
    named = [bytes(body) for kind, body in hello.extensions if kind == _SERVER_NAME]
    if not named:
        return None
    body = named[0]
    name = body[_NAME_HEAD:]
    exact = (len(name) + 3).to_bytes(2) + b"\0" + len(name).to_bytes(2)
    if len(named) > 1 or body[:_NAME_HEAD] != exact:
        raise HostRefused("the TLS hello does not have exactly one server name")
    return canonical_host(name.decode("latin-1"))
