"""A port for a program that has to be told one."""

import secrets
import socket

PORTS = range(20_000, 32_000)
"""Below those that the kernel gives to clients (net.ipv4.ip_local_port_range, from 32768): of those any
connection of any test may be given one, between the choice here and the program's bind."""
TRIES = 100


def free_port() -> int:
    """Nobody listens on it on 127.0.0.1, and hardly anybody will before the program does."""
    for _ in range(TRIES):
        port = secrets.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port in {PORTS} after {TRIES} tries")
