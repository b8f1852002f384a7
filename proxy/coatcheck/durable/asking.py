"""In the daemon: asks one supervisor short questions over its `api.sock`. Streams go through `relay`."""

import contextlib
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from coatcheck.launcher.spec import SOCKET
from coatcheck.sandbox.sandbox import SandboxProblem, SandboxRefused

ANSWER_SECONDS: Final = 20.0
"""Pausing a guest waits for its hypervisor."""
MAX_ANSWER: Final = 256 * 1024

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid (unix(7))


class SupervisorSilent(SandboxRefused):
    """It does not answer: not up yet, gone, or stuck."""

    def __init__(self, why: str) -> None:
        super().__init__(
            SandboxProblem.NOT_STARTED,
            f"the sandbox's supervisor does not answer ({why})",
            "See `coatcheck sandbox list`, and the daemon's log.",
        )


def ask_supervisor(
    directory: Path,
    method: str,
    target: str,
    body: Mapping[str, Any] | None = None,
    seconds: float = ANSWER_SECONDS,
) -> Any:
    """Its answer. SupervisorSilent, or SandboxRefused when it answers that it cannot."""
    connection = http.client.HTTPConnection("localhost", timeout=seconds)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(seconds)
    try:
        connection.sock.connect(str(directory / SOCKET))
        content = json.dumps(body or {}).encode()
        connection.request(method, target, content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read(MAX_ANSWER))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise SupervisorSilent(type(error).__name__) from None
    finally:
        connection.close()
    if response.status >= 400:
        told = answer["error"]
        raise SandboxRefused(SandboxProblem(told["reason"]), told["message"], told["hint"])
    return answer


def supervisor_pid(directory: Path) -> int | None:
    """Whose socket it is, by the kernel's word; None when nobody listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(directory / SOCKET))
        except OSError:
            return None
        pid: int = _CREDENTIALS.unpack(
            probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )[0]
        return pid


def kill_supervisor(process: "subprocess.Popen[bytes] | None", directory: Path) -> None:
    """SIGKILL: to the process that we started, or to the one that listens for a sandbox that we have
    adopted."""
    if process is not None:
        process.kill()
    elif (pid := supervisor_pid(directory)) is not None:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
