"""Runs INSIDE the sandbox: reaches for what the daemon's host has. Says what it got, or the error.

Input: `{"read": [paths], "tcp": [[host, port]], "unix": [paths], "signal": [pids]}`. Of what it can read it
reads one byte: where nothing isolates it, that is a secret.
"""

import errno
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any


def outcomes[T](action: Callable[[T], str], targets: list[T]) -> list[str]:
    return [outcome(action, target) for target in targets]


def outcome[T](action: Callable[[T], str], target: T) -> str:
    try:
        return action(target)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)


def read(path: str) -> str:
    with open(path, "rb") as file:
        if path.endswith("/mem"):
            with open(path.removesuffix("mem") + "maps") as maps:
                file.seek(int(maps.readline().partition("-")[0], 16))
        return "readable" if file.read(1) else "empty"


def connect(address: list[Any] | str) -> str:
    family, to = (socket.AF_UNIX, address) if isinstance(address, str) else (socket.AF_INET, tuple(address))
    with socket.socket(family) as stream:
        stream.settimeout(5)
        stream.connect(to)
        return "connected"


def signal(pid: int) -> str:
    os.kill(pid, 0)
    return "may signal it"


asked = json.loads(sys.stdin.readline())
found = {
    "read": outcomes(read, asked["read"]),
    "tcp": outcomes(connect, asked["tcp"]),
    "unix": outcomes(connect, asked["unix"]),
    "signal": outcomes(signal, asked["signal"]),
    "processes": [int(name) for name in os.listdir("/proc") if name.isdigit()],
    "interfaces": [name for _, name in socket.if_nameindex()],
    "environment": sorted(os.environ),  # noqa: TID251 - the sandbox's own
}
print(json.dumps(found), flush=True)
sys.stdin.read()
