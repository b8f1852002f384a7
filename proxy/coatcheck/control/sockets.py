"""The control API's listening sockets: bound, with the right mode, before anybody can connect."""

import os
import socket
import stat
from pathlib import Path
from typing import Final

from coatcheck.platform.errors import CoatcheckError
from coatcheck.platform.server_tls import ServerTls

BACKLOG: Final = 128
_LONGEST_PATH: Final = 107
"""Bytes of a Unix socket's path on Linux (unix(7): 108 with the NUL)."""


class ControlSocketError(CoatcheckError):
    """The control API cannot listen. `hint` says what to do next."""


def bind_unix(path: Path, mode: int) -> socket.socket:
    """A socket at `path`, bound and not yet listening. A dead daemon's socket is replaced, no other file."""
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ControlSocketError(
            f"the control socket's path is longer than {_LONGEST_PATH} bytes: {path}",
            "Set COATCHECK_CONTROL_SOCKET to a shorter one, for example below /run.",
        )
    _remove_dead(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        bound.bind(str(path))
        os.chmod(path, mode)  # nobody can connect before listen(2), so the mode is never too wide
    except OSError as error:
        bound.close()
        raise ControlSocketError(
            f"cannot listen on {path}: {error.strerror}",
            "Check the directory, or set COATCHECK_CONTROL_SOCKET.",
        ) from None
    return bound


def bind_tcp(host: str, port: int) -> list[socket.socket]:
    """Sockets for every address of `host`, bound and not yet listening."""
    bound: list[socket.socket] = []
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in infos:
            each = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
            bound.append(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            each.bind(address)
    except OSError as error:
        for each in bound:
            each.close()
        raise ControlSocketError(
            f"cannot listen on {host} port {port}: {error.strerror}",
            "Set COATCHECK_CONTROL_HOST and COATCHECK_CONTROL_PORT to an address that is free.",
        ) from None
    return bound


def server_tls(certificate: Path, client_ca: Path | None) -> ServerTls:
    """The TCP listener's TLS. With `client_ca`, a client certificate may be shown, and must then be good."""
    try:
        return ServerTls(certificate, client_ca)
    except OSError as error:
        raise unusable(error) from None


def unusable(error: OSError) -> ControlSocketError:
    return ControlSocketError(
        f"the control API's certificates cannot be used: {error.strerror or error}",
        "control_tls_certificate is a PEM file of certificate and key, or a directory with tls.crt and"
        " tls.key; control_client_ca is a PEM file of roots.",
    )


def _remove_dead(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ControlSocketError(
                f"{path} exists and is not a socket", "Move it away, or set COATCHECK_CONTROL_SOCKET."
            )
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass  # alive, and busy
    raise ControlSocketError(
        f"another daemon listens on {path}", "Stop it, or set COATCHECK_CONTROL_SOCKET to another path."
    )
