"""What the control API needs of the daemon, and what it makes of it. No plane is known here."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Protocol

from coatcheck.certificates.authority import Authority
from coatcheck.certificates.trust import TrustFiles
from coatcheck.decision.policy import Credential
from coatcheck.durable.sandboxes import Sandboxes
from coatcheck.inspection.inspector import Inspector
from coatcheck.policy.in_force import PoliciesInForce
from coatcheck.policy.shadow import Shadow
from coatcheck.request.approvals import Approvals
from coatcheck.request.exchange import Exchange
from coatcheck.secrets.cache import CachedStore
from coatcheck.secrets.router import Stores
from coatcheck.secrets.usable import Trouble, logins, troubles
from coatcheck.settings.daemon import Settings
from coatcheck.state.buckets import Buckets
from coatcheck.state.database import Status
from coatcheck.state.errors import Problem, StateError
from coatcheck.state.state import State
from coatcheck.telemetry.audit.log import AuditLog
from coatcheck.telemetry.events import Event, SandboxEvent
from coatcheck.telemetry.metrics.metrics import CONTENT_TYPE, Metrics
from coatcheck.telemetry.recent import Recent
from coatcheck.telemetry.sandbox_feed import SandboxFeed
from coatcheck.telemetry.sinks import Telemetry

type Listen = Literal["unix", "tcp", "sandbox"]


type Address = tuple[str, int]


class SessionListeners(Protocol):
    """Belongs to the plane's loop, but for `endpoint`."""

    async def open_unix(self, session_id: str) -> Path: ...

    async def open_sandbox(self, session_id: str) -> Path: ...

    async def open_tcp(self, session_id: str) -> tuple[str, int]: ...

    def endpoint(self, session_id: str, purpose: str = "") -> str | None: ...

    def close_session(self, session_id: str) -> None: ...

    def keep_out(self, host: str, port: int) -> None: ...


class Addresses(Protocol):
    @property
    def transparent(self) -> tuple[Address, ...]: ...

    @property
    def dns(self) -> tuple[Address, ...]: ...


class Daemon(Protocol):
    """`daemon.Daemon`, as far as it is used here: it is above this room."""

    @property
    def settings(self) -> Settings: ...

    @property
    def state(self) -> State: ...

    def trust_for(self, session_id: str) -> TrustFiles:
        """What a session's sandbox must trust."""

    @property
    def metrics(self) -> Metrics: ...

    @property
    def audit(self) -> AuditLog: ...

    @property
    def authority(self) -> Authority: ...

    @property
    def listeners(self) -> SessionListeners | None: ...

    @property
    def proxy_address(self) -> tuple[str, int] | None:
        """Of the shared listener."""

    @property
    def addresses(self) -> Addresses: ...

    @property
    def exchange(self) -> Exchange: ...

    @property
    def control_addresses(self) -> tuple[Address, ...]:
        """Of the control API over TCP."""

    @property
    def stores(self) -> Stores: ...

    @property
    def store(self) -> CachedStore: ...

    @property
    def telemetry(self) -> Telemetry: ...

    @property
    def sandboxes(self) -> Sandboxes: ...

    @property
    def feed(self) -> SandboxFeed: ...

    def sandbox_changed(self, event: SandboxEvent) -> None: ...

    @property
    def inspector(self) -> Inspector: ...

    @property
    def ready(self) -> bool: ...

    @property
    def policies(self) -> PoliciesInForce: ...

    async def reload(self) -> bool: ...


class Backend:
    """Methods marked (plane) are called on the plane's loop only; the others from any thread."""

    def __init__(self, daemon: Daemon, reload_grants: Callable[[], str | None]) -> None:
        self.daemon = daemon
        self._reload_grants = reload_grants
        self.state = daemon.state
        self.trust_for = daemon.trust_for
        self.sandboxes = daemon.sandboxes
        self.feed = daemon.feed
        self.sandbox_changed = daemon.sandbox_changed
        self.inspector = daemon.inspector
        self.policies = daemon.policies

    @property
    def draining(self) -> bool:
        return self.daemon.exchange.draining

    @property
    def serving(self) -> bool:
        """Neither coming up nor going down."""
        return self.daemon.ready and not self.draining

    @property
    def longest_run(self) -> int:
        """Seconds that a sandbox may run at the most."""
        return self.daemon.settings.sandbox_max_run

    @property
    def approvals(self) -> Approvals:
        """(plane) Requests that wait for somebody's word."""
        return self.daemon.exchange.approvals

    @property
    def shadow(self) -> Shadow | None:
        """Candidate policies that are compared with those in force."""
        return self.daemon.exchange.shadow

    @property
    def buckets(self) -> Buckets:
        """Of the rate limits; only what may be called from any thread is used."""
        return self.daemon.exchange.buckets

    @property
    def recent(self) -> Recent:
        """What happened lately."""
        return self.daemon.telemetry.recent

    def tell(self, event: Event) -> None:
        """For the audit log."""
        self.daemon.exchange.tell(event)

    @property
    def ca_not_after(self) -> datetime:
        return self.daemon.authority.not_after

    @property
    def secret_ttl(self) -> float:
        """Seconds until a secret at hand is read again."""
        return self.daemon.settings.secret_ttl

    def secret_ages(self) -> Mapping[str, float]:
        """Seconds since each secret at hand was read, by credential."""
        return self.daemon.metrics.pulled.secret_ages()

    def store_silent(self) -> bool:
        """Whether the secret store fails so often that it is not asked for a while."""
        return self.daemon.metrics.pulled.breaker_open()

    async def secret_stores(self) -> tuple[list[str], list[Trouble]]:
        """(plane) The stores that are configured, and those that do not answer."""
        stores = self.daemon.stores.by_name
        return sorted(stores), await logins(stores)

    @property
    def live_sessions(self) -> int:
        over = self.daemon.exchange.is_over
        return sum(not over(session_id) for session_id in tuple(self.state.sessions.by_id))

    async def secret_troubles(self, credentials: Iterable[Credential]) -> list[Trouble]:
        """(plane) Which stores and credentials cannot be used now, and why."""
        return await troubles(credentials, self.daemon.stores.by_name, self.daemon.store)

    @property
    def proxy_url(self) -> str | None:
        """`http://host:port` of the shared listener, `https://…` if it wants certificates; or None."""
        address = self.daemon.proxy_address
        if address is None:
            return None
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        scheme = "http" if self.daemon.settings.proxy_tls_certificate is None else "https"
        return f"{scheme}://{host}:{address[1]}"

    @property
    def transparent(self) -> bool:
        """Whether there is a shared listener for redirected connections."""
        return bool(self.daemon.addresses.transparent)

    def missing(self) -> tuple[str, ...]:
        """What keeps the daemon from serving, in words of a closed set; empty when it is ready.

        A secret store that is down is not among them: other credentials go on working, and a fleet that
        takes all its proxies out at once is worse off.
        """
        checks = (
            ("started", self.daemon.ready or self.draining),
            ("accepting requests", not self.draining),
            ("policies", bool(self.state.policies)),
            ("shared state", self.state.stale(self.state.clock.now()) is None),
            ("audit log", not self.daemon.audit.failing),
            ("certificate authority", datetime.now(UTC) < self.daemon.authority.not_after),
        )
        return tuple(what for what, good in checks if not good)

    def render_metrics(self) -> tuple[str, bytes]:
        """The content type and the text that Prometheus scrapes."""
        return CONTENT_TYPE, self.daemon.metrics.render()

    def endpoint(self, session_id: str, purpose: str = "") -> str | None:
        """The URL of a session's own listener; `purpose`: `.t` for redirected connections, `.d` for DNS."""
        listeners = self.daemon.listeners
        return listeners.endpoint(session_id, purpose) if listeners is not None else None

    async def open_listener(self, session_id: str, listen: Listen) -> str:
        """(plane) Open a session's own listener; its URL. OSError or StateError when it cannot be had."""
        listeners = self.daemon.listeners
        if listeners is None:
            raise OSError("the proxy does not listen yet")
        if listen == "unix":
            url = f"unix://{await listeners.open_unix(session_id)}"
        elif listen == "sandbox":
            url = f"unix://{await listeners.open_sandbox(session_id)}"
        else:
            host, port = await listeners.open_tcp(session_id)
            url = f"http://{host}:{port}"
        # It may have been revoked in between, when there was no listener to close yet.
        if self.state.status(session_id) is not Status.LIVE:
            listeners.close_session(session_id)
            raise StateError(
                Problem.SESSION_CLOSED,
                f"session {session_id} was revoked while it was being opened",
                "Open another one.",
            )
        return url

    async def reload(self) -> Mapping[str, str]:
        """(plane) Read policies and grants again. What was refused, by `policy` and `grants`: why."""
        refused: dict[str, str] = {}
        if not await self.daemon.reload():
            refused["policy"] = self.policies.last_refused
        grants = await asyncio.to_thread(self._reload_grants)
        if grants is not None:
            refused["grants"] = grants
        return refused
