"""Ending connections: a reset that no peer takes for a clean end, and a last response that arrives."""

import asyncio
import socket
import struct
from typing import Any

_LINGER_RESET = struct.pack("ii", 1, 0)


def reset(writer: Any) -> None:
    """Close a StreamWriter with RST: what is buffered is dropped, and no peer takes it for a clean end."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        except OSError:
            pass  # already gone
    writer.transport.abort()


def address_of(name: object) -> tuple[str, int]:
    """mitmproxy wants (host, port); a Unix socket has neither."""
    if isinstance(name, tuple) and len(name) >= 2:
        return (str(name[0]), int(name[1]))
    return ("unix", 0)


LINGER_SECONDS = 1.0
"""How long a peer may take to read the last response."""
LINGER_BYTES = 65_536


async def answer_and_close(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, response: bytes
) -> None:
    """Send `response` and close. What the peer still sends is read for a moment: closing over unread bytes
    resets the connection, and the peer may lose the response (RFC 9112 9.6)."""
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            writer.write(response)
            await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
            left = LINGER_BYTES
            while left > 0 and (data := await reader.read(left)):
                left -= len(data)
    except (OSError, TimeoutError):
        pass  # gone already
    finally:
        writer.close()
