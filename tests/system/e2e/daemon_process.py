"""`coatcheck serve` as a process of its own, asked through its control socket and its sessions' listeners."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.planes.wire import Wire
from tests.system.e2e.story import PATIENCE, until
from tests.upstreams import UpstreamTls

STARTING = 90.0
"""Seconds for a daemon to be ready. It takes two on an idle machine, most of it for Python's imports."""


@dataclass
class DaemonProcess:
    """A daemon in `directory`; `start` it again after it ended, as systemd would."""

    directory: Path
    settings: Mapping[str, str]
    wrapper: tuple[str, ...] = ()
    """The program that becomes the daemon, and its arguments; empty: it is started as it is."""
    process: asyncio.subprocess.Process | None = field(default=None, repr=False)

    @property
    def log(self) -> str:
        return (self.directory / "stderr").read_text()

    @property
    def audit(self) -> Path:
        return self.directory / "state/audit/audit.jsonl"

    @property
    def policy(self) -> Path:
        return self.directory / "policies/default.yaml"

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit.read_text().splitlines()]

    async def start(self) -> None:
        """Returns when it says that it is ready."""
        await self.spawn()
        await until(self.ready, lambda ready: ready, patience=STARTING)

    async def spawn(self) -> None:
        """Returns at once."""
        with (self.directory / "stderr").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.wrapper, sys.executable, "-m", "coatcheck", "serve",
                env=dict(self.settings), stdout=log, stderr=log,
            )  # fmt: skip

    async def ready(self) -> bool:
        assert self.process is not None
        if self.process.returncode is not None:
            raise AssertionError(f"the daemon ended:\n{self.log}")
        try:
            return (await self.control("GET", "/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def ended(self) -> tuple[int, float]:
        """Waits for its end: exit code, seconds."""
        assert self.process is not None
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait(), time.monotonic() - began

    async def kill(self) -> None:
        """No chance to write anything any more."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def control(self, method: str, path: str, **body: Any) -> httpx.Response:
        transport = httpx.AsyncHTTPTransport(uds=str(self.directory / "run/control.sock"))
        async with httpx.AsyncClient(transport=transport, timeout=PATIENCE) as http:
            return await http.request(
                method, f"http://localhost{path}", json=body if method != "GET" else None
            )

    async def open_session(self, listen: str) -> "OpenedSession":
        answer = await self.control(
            "POST", "/v1/sessions", tenant="acme", subject=listen, policy="default", listen=listen
        )
        assert answer.status_code == 201, answer.text
        opened = answer.json()
        return OpenedSession(
            opened["session"]["id"],
            opened["proxy"]["url"],
            opened["handles"]["openai"]["value"],
            Path(opened["proxy"]["ca"]),
        )


OVER = ("session_revoked", "session_expired", "lease_lapsed")


class SessionOverError(ConnectionError):
    """CONNECT was answered with 401, and why."""


@dataclass(frozen=True)
class OpenedSession:
    """What the sandbox of a session was given."""

    id: str
    url: str
    handle: str = field(repr=False)
    ca: Path

    async def connect(self) -> Wire:
        """A TLS connection to the API, through the session's own listener."""
        to = urlsplit(self.url)
        if to.scheme == "unix":
            raw = Wire(*await asyncio.open_unix_connection(to.path))
        else:
            raw = Wire(*await asyncio.open_connection(to.hostname, to.port))
        await raw.send(b"CONNECT api.openai.com:443 HTTP/1.1\r\nHost: api.openai.com:443\r\n\r\n")
        head = await raw.head()
        status, over = int(head.split()[1]) if head else 0, [word for word in OVER if word in head]
        if status == 401 and over:
            raw.writer.transport.abort()
            raise SessionOverError(over[0])
        assert status == 200, head
        await raw.start_tls(self.ca, "api.openai.com")
        return raw

    async def request(self, wire: Wire, path: str = "/v1/models") -> tuple[int, str]:
        """Status and reason of one request; the body is left unread."""
        headers = f"Host: api.openai.com\r\nAuthorization: Bearer {self.handle}\r\n"
        await wire.send(f"GET {path} HTTP/1.1\r\n{headers}\r\n".encode())
        head = await wire.head()
        reasons = [line for line in head.split("\r\n") if line.lower().startswith("coatcheck-reason:")]
        return int(head.split()[1]) if head else 0, reasons[0].split(": ")[1] if reasons else ""

    async def ask(self) -> tuple[int, str]:
        """One request over a connection of its own. (0, "") when there is no listener, or one that only
        answers that the session is over, as it does for a minute."""
        try:
            wire = await self.connect()
        except (FileNotFoundError, ConnectionError):
            return 0, ""
        try:
            return await self.request(wire)
        finally:
            wire.writer.transport.abort()


@asynccontextmanager
async def daemon_process(
    directory: Path,
    secrets: Path,
    policy: str,
    *,
    key: str,
    upstream_tls: UpstreamTls,
    port: int,
    environment: Mapping[str, str] | None = None,
    wrapper: tuple[str, ...] = (),
    **settings: str,
) -> AsyncIterator[DaemonProcess]:
    """A ready daemon whose one secret is the file `openai/key` below `secrets`, which holds `key`."""
    for each in (directory / "policies", secrets / "openai"):
        each.mkdir(mode=0o755, parents=True)
    file = secrets / "openai/key"
    file.touch(0o600)
    file.write_text(key)
    daemon = DaemonProcess(
        directory,
        {
            "COATCHECK_STATE_DIR": str(directory / "state"),
            "COATCHECK_RUNTIME_DIR": str(directory / "run"),
            "COATCHECK_POLICY": str(directory / "policies"),
            "COATCHECK_SECRETS_DIR": str(secrets),
            "COATCHECK_UPSTREAM_CA_FILE": str(upstream_tls.ca),
            "COATCHECK_ALLOWED_NETWORKS": '["127.0.0.0/8"]',
            "COATCHECK_CONNECT_TO": json.dumps({"api.openai.com:443": f"127.0.0.1:{port}"}),
            "PATH": "/usr/bin:/bin",
        }
        | {f"COATCHECK_{name.upper()}": value for name, value in settings.items()}
        | dict(environment or {}),
        wrapper,
    )
    daemon.policy.write_text(policy)
    daemon.policy.chmod(0o644)
    try:
        await daemon.start()
        yield daemon
    finally:
        await daemon.kill()
