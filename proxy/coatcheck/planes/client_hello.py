"""Whether a ClientHello is whole yet, before anything parses it: bounded in bytes, records and time (I9).

mitmproxy's reader starts anew with each byte that arrives and waits for as many as the hello says that it
has, up to 16 MiB (RFC 8446 4: 24 bits); in one-byte records and one-byte segments that is a minute of CPU.
"""

HELLO_BYTES = 16_384
"""A hello with post-quantum key shares has under 2 KiB; one TLS record holds 16 KiB."""
HELLO_RECORDS = 16
"""Real ones come in one; some clients cut them into a handful, so that middleboxes do not read them."""

_HANDSHAKE, _CLIENT_HELLO = 0x16, 0x01


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
