"""A session's own listening sockets, and their paths. A connection on one proves the session."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

MAX_SOCKET_PATH = 107
"""Bytes, from sockaddr_un on Linux."""
TRANSPARENT, DNS = ".t", ".d"
"""What follows the proxy socket's path in the others of a whole sandbox."""

type Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class SessionSockets:
    """What is open for one session. Belongs to the plane's loop."""

    paths: dict[str, Path] = field(default_factory=dict)
    """Its Unix sockets by purpose: "" is the proxy's."""
    address: tuple[str, int] | None = None
    """Its loopback port, if it has that instead."""
    servers: list[asyncio.Server] = field(default_factory=list)
    asking: set[asyncio.StreamWriter] = field(default_factory=set)
    """DNS connections that are open."""

    def url(self, purpose: str) -> str | None:
        path = self.paths.get(purpose)
        if path is not None or purpose:
            return f"unix://{path}" if path is not None else None
        return f"http://{self.address[0]}:{self.address[1]}" if self.address is not None else None

    async def bind(self, at: Path, purpose: str, accept: Accept, *, backlog: int, limit: int) -> Path:
        """Listen at `at` with the purpose behind it; the path. OSError when that cannot be had."""
        path = at.with_name(at.name + purpose)
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            raise OSError(
                f"the path {path} is too long for a socket: set COATCHECK_RUNTIME_DIR to a shorter one"
            )
        path.unlink(missing_ok=True)
        self.servers.append(await asyncio.start_unix_server(accept, path, backlog=backlog, limit=limit))
        self.paths[purpose] = path
        os.chmod(path, 0o666)  # noqa: S103 - the sandbox's user is not ours; the directory is 0700
        return path

    def close(self) -> None:
        for server in self.servers:
            server.close()
        for path in self.paths.values():
            path.unlink(missing_ok=True)
        for writer in self.asking:
            writer.transport.abort()


def directory_of(runtime: Path) -> Path:
    """Where the sockets are: ours alone, so that no other user can reach them. They are mounted into
    the sandbox (a bind mount needs no access to the directories above it)."""
    directory = runtime / "sessions"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    return directory
