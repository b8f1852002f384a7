"""Telling systemd how far we are (sd_notify(3)), for `Type=notify`."""

import socket

SEND_SECONDS = 1.0
"""The manager reads promptly or not at all; a daemon must not hang on telling that it is ready."""


def notify(message: str, socket_path: str | None) -> bool:
    """Send `message` (`READY=1`, `STOPPING=1`, `STATUS=…`; several joined by newlines) to the manager.

    `socket_path` is `NOTIFY_SOCKET` as systemd set it. Returns False where there is none, so not under
    systemd; raises OSError when the manager cannot be told, and ValueError for an address of a kind
    that we do not speak (a VM's `vsock:`).
    """
    if not socket_path:
        return False
    if socket_path[0] not in "/@":
        raise ValueError("NOTIFY_SOCKET must be an absolute path or an abstract socket's @name")
    # An abstract socket's name begins with NUL where the variable shows an @ (unix(7)).
    address = "\0" + socket_path[1:] if socket_path[0] == "@" else socket_path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.settimeout(SEND_SECONDS)
        channel.connect(address)
        channel.sendall(message.encode())
    return True
