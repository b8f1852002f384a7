"""Two things that sockets are asked for: their name, and an end that nobody takes for a clean one."""

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
