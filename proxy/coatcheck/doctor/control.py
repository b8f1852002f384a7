"""The control socket: whether a daemon answers there, and whether we may ask it."""

import socket
import stat
import struct
from pathlib import Path

from coatcheck.doctor.finding import Finding, Subject, ok, problem, warning

CONNECT_SECONDS = 2.0
"""A local socket accepts at once or its daemon hangs."""
LONGEST_SOCKET_PATH = 107
"""Bytes: the kernel's sun_path (unix(7)) without its final NUL."""
SESSION_SOCKET_BYTES = 40
"""`/` and a session's id and `.sock`: sessions' own sockets lie beside the control socket."""


def control_socket(subject: Subject) -> list[Finding]:
    """There, a socket, permitted, and somebody behind it."""
    check, path = "control socket", subject.control_socket.absolute()
    if len(str(path)) > LONGEST_SOCKET_PATH:
        return problem(
            check,
            f"{path} has {len(str(path))} characters, a socket's path at most {LONGEST_SOCKET_PATH}",
            "set COATCHECK_RUNTIME_DIR to a short path, such as /run/coatcheck",
        )
    if len(str(subject.settings.runtime)) + SESSION_SOCKET_BYTES > LONGEST_SOCKET_PATH:
        return problem(
            check,
            f"{subject.settings.runtime} is too long for sessions' sockets in it",
            "set COATCHECK_RUNTIME_DIR to a short path, such as /run/coatcheck",
        )
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return warning(
            check, f"{path} does not exist: no daemon runs with these settings", "start it: coatcheck serve"
        )
    except OSError as error:
        return problem(check, f"{path}: {error.strerror}", "run as the daemon's user, or join its group")
    if not stat.S_ISSOCK(mode):
        return problem(check, f"{path} is not a socket", "move it away: the daemon will not replace it")
    try:
        pid = _peer(path)
    except PermissionError:
        return problem(
            check,
            f"{path}: permission denied",
            "run as the daemon's user, or join its group and add this uid to COATCHECK_CONTROL_UIDS",
        )
    except OSError as error:
        return problem(
            check,
            f"no daemon answers at {path}: {error.strerror or 'timed out'}",
            "the daemon has ended and left the socket behind, or it hangs: systemctl status coatcheck",
        )
    return ok(check, f"a daemon answers, process {pid}")


def daemon_pid(path: Path) -> int | None:
    """The process behind the socket, or None."""
    try:
        return _peer(path)
    except OSError:
        return None


def _peer(path: Path) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as channel:
        channel.settimeout(CONNECT_SECONDS)
        channel.connect(str(path))
        credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid
