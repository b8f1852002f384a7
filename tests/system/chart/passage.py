"""A way from an address of a network namespace to a port of this machine's loopback, TLS in front or not."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.system.redirect.world import Namespace

SECONDS = 30.0


@contextmanager
def passage(where: Namespace, host: str, target: int, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port at `host` in `where`, whose connections come out at 127.0.0.1:`target` out here."""
    # A socket belongs to the namespace in which it was made, and can be used from any.
    server = where.do(lambda: socket.create_server((host, 0)))
    thread = threading.Thread(target=_accept, args=(server, target, tls), name="passage", daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        thread.join(SECONDS)
        server.close()


def _accept(server: socket.socket, target: int, tls: ssl.SSLContext | None) -> None:
    while True:
        try:
            plain, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=_carry, args=(plain, target, tls), name="passage", daemon=True).start()


def _carry(plain: socket.socket, target: int, tls: ssl.SSLContext | None) -> None:
    plain.settimeout(SECONDS)
    with suppress(OSError):
        near = tls.wrap_socket(plain, server_side=True) if tls is not None else plain
        with near, socket.create_connection(("127.0.0.1", target), SECONDS) as far:
            back = threading.Thread(target=_pump, args=(far, near), name="passage", daemon=True)
            back.start()
            _pump(near, far)
            back.join(SECONDS)


def _pump(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    with suppress(OSError):
        other.shutdown(socket.SHUT_RDWR)
