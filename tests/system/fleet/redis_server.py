"""Debian's redis-server as a process of its own, on loopback and a Unix socket, with TLS and ACLs."""

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.ports import free_port

PATIENCE = 20.0
"""Seconds for a server to answer; it takes 50 ms on an idle machine."""


@dataclass
class RedisServer:
    """A server in `directory`; `start` it again after it was killed."""

    directory: Path
    options: tuple[str, ...] = ()
    port: int = 0
    admin_password: str = field(default_factory=lambda: secrets.token_hex(8), repr=False)
    acl: tuple[str, ...] = ()
    """Lines of an ACL file, besides the administrator's."""
    tls: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def socket(self) -> Path:
        return self.directory / "redis.sock"

    def start(self) -> None:
        users = [f"user default on >{self.admin_password} ~* &* +@all", *self.acl]
        (self.directory / "users.acl").write_text("\n".join(users) + "\n")
        self.port = self.port or free_port()
        where = ("--port", "0", "--tls-port", str(self.port)) if self.tls else ("--port", str(self.port))
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ("redis-server", *where, "--bind", "127.0.0.1", "--unixsocket", str(self.socket),
                 "--aclfile", str(self.directory / "users.acl"), "--dir", str(self.directory),
                 "--save", "", "--appendonly", "no", "--enable-debug-command", "yes",
                 "--repl-diskless-sync-delay", "0", *self.tls, *self.options),
                stdout=log, stderr=log, env={"PATH": os.environ["PATH"]},
            )  # fmt: skip
        import redis  # not by every worker that collects tests

        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.admin().ping()
                return
            except redis.RedisError:
                assert self.process.poll() is None, (self.directory / "log").read_text()
                assert time.monotonic() < deadline, "redis-server does not answer"
                time.sleep(0.02)

    def admin(self) -> Any:
        """A client that may do everything; redis-py's types fit only who looks at every answer twice."""
        import redis

        return redis.Redis(
            unix_socket_path=str(self.socket), password=self.admin_password, socket_timeout=PATIENCE
        )

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """No chance to write anything any more."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()

    def restart_empty(self) -> None:
        self.kill()
        self.start()


@contextmanager
def redis_server(directory: Path, **wanted: object) -> Iterator[RedisServer]:
    """A server that answers; killed at the end. `directory` must be short: a socket's path has 107 bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    server = RedisServer(directory, **wanted)  # type: ignore[arg-type]
    try:
        server.start()
        yield server
    finally:
        server.kill()
