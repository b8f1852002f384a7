"""The composition root: the only file that knows every concrete class. Start, reload, drain, stop."""

import asyncio
import functools
import gc
import itertools
import logging
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from coatcheck.certificates.authority import Authority
from coatcheck.certificates.leaf import LeafIssuer
from coatcheck.certificates.succession import tidy, trusted
from coatcheck.certificates.trust import TrustFiles, write_trust_files
from coatcheck.control.resources.status import facts
from coatcheck.control.server import ControlServer
from coatcheck.decision.denial import Reason
from coatcheck.decision.session import alive
from coatcheck.durable.sandboxes import Sandboxes
from coatcheck.fleet.member import member_of, open_state
from coatcheck.inspection.daemon import inspector_of
from coatcheck.planes.configured import (
    Addresses,
    open_shared,
    platform_tokens,
    proxy_tls,
    session_cas,
    upstream_settings,
)
from coatcheck.planes.dns.resolver import Resolver
from coatcheck.planes.listeners.listener import Listeners
from coatcheck.planes.mitm.plane import MitmPlane
from coatcheck.planes.mitm.tls import ClientTls, UpstreamTls
from coatcheck.planes.upstream.upstream import Upstream
from coatcheck.platform.outage import Outage
from coatcheck.platform.process_memory import give_back_memory, raise_file_limit
from coatcheck.platform.process_memory import protect_process as protect_process
from coatcheck.platform.server_tls import ServerTls
from coatcheck.platform.state_directory import StateDirectory
from coatcheck.platform.systemd import notify
from coatcheck.policy.in_force import PoliciesInForce
from coatcheck.policy.shadow import Shadow
from coatcheck.request.exchange import Exchange
from coatcheck.secrets import SecretStore
from coatcheck.secrets.cache import CachedStore
from coatcheck.secrets.configured import make_stores as make_stores
from coatcheck.secrets.router import Stores
from coatcheck.secrets.usable import troubles
from coatcheck.settings.daemon import Settings, notify_socket
from coatcheck.state.clock import awake
from coatcheck.state.errors import StateError
from coatcheck.state.registry import Taken
from coatcheck.state.sessions import OWN_SANDBOX, SANDBOX_SOCKETS
from coatcheck.telemetry.audit.checkpoint import CheckpointSigner
from coatcheck.telemetry.audit.log import AuditLog
from coatcheck.telemetry.audit.tail import records
from coatcheck.telemetry.events import DaemonEvent, SandboxEvent
from coatcheck.telemetry.metrics.metrics import FetchFailure, Metrics
from coatcheck.telemetry.otel.otel import opentelemetry
from coatcheck.telemetry.sandbox_feed import SandboxFeed
from coatcheck.telemetry.sinks import Telemetry
from coatcheck.telemetry.usage import UsageLedger
from coatcheck.telemetry.webhook import webhook

logger = logging.getLogger(__name__)

GARBAGE_THRESHOLD = 20_000
"""New container objects between two collections (Python's default: 2,000). Connections leave cycles of some
hundred objects, about 100 KiB each: some 10 MiB wait at most."""
SWEEP_SECONDS = 1.0
"""How often lapsed sessions are closed in the books; a lapsed one is refused at once in any case."""
GIVE_BACK_SWEEPS = 60
"""Sweeps between two times that freed memory is given back to the system."""
GIVE_BACK_ENDED = 200
"""Or so many connections ended: one cut off in a large answer leaves 0.5 MiB, and 50 may be in a second."""
LOOKED_AT = 256
"""Credentials whose secrets are read at the start, to say which cannot be used."""
OVER_AT_ONCE = 50
"""Sessions whose sockets are closed in one turn of the plane's loop: some 5 ms."""


class Daemon:
    """All parts, wired. `start` it, then `stop` it; in between `reload`, `drain`."""

    def __init__(self, settings: Settings, stores: Mapping[str, SecretStore] | None = None) -> None:
        """Opens the state directory and everything in it. `stores` replaces those that settings name."""
        self.settings = settings
        self.directory = StateDirectory.open(settings.state_dir)
        self.metrics = Metrics()
        self.audit = AuditLog(
            self.directory.audit / "audit.jsonl",
            signer=CheckpointSigner.load_or_create(self.directory.path / "checkpoint-key.pem"),
            second_sink=settings.audit_checkpoints,
        )
        self.usage = UsageLedger()
        self.webhook = webhook(settings.webhook_url, settings.webhook_secret_file)
        self.telemetry = Telemetry(
            self.audit, self.metrics, self.usage, otel=opentelemetry(settings), webhook=self.webhook
        )
        if self.audit.recovery.missing:
            lost = f"{self.audit.recovery.missing} records that checkpoints vouch for are gone"
            self.telemetry.emit(DaemonEvent(time.time(), "audit_truncated", lost))
        emit, seen = self.telemetry.emit, self.audit.last_state_version()
        self.state = open_state(settings, self.directory.sessions, emit, seen)
        self.member = member_of(settings, self.state, emit)
        self._resume_usage()
        self.authority = Authority.load_or_create(self.directory.ca)
        tidy(self.directory.ca, self.authority)
        self.trust: TrustFiles = self._write_trust()
        self.session_cas = session_cas(settings, self.trust.ca.parent)
        self._unkept = Outage()
        self.stores = Stores(
            stores if stores is not None else make_stores(settings),
            failed=lambda kind: self.metrics.fetch_failed(FetchFailure(kind)),
        )
        self.store = CachedStore(
            self.stores,
            ttl=settings.secret_ttl,
            max_stale=settings.secret_max_stale,
            clock=awake,
        )
        self.exchange = Exchange(self.state, self.store, self.telemetry.emit)
        self.exchange.revoke_for_theft = self._revoke_for_theft
        self.exchange.shared.probing.end_grant = self._end_probed_grant
        self.exchange.shared.probing.end_session = self._end_probed_session
        self.policies = PoliciesInForce(
            settings, self.directory, self.state, self.metrics, self.exchange.tell
        )
        self.feed = SandboxFeed()
        self.sandboxes = Sandboxes(settings, self.sandbox_changed, self._end_session, self.trust)
        self.state.keep(self.sandboxes.kept.held)
        self.inspector = inspector_of(
            self.exchange, self.audit.signer, self.telemetry.emit, lambda: self.loop
        )
        if settings.shadow_policy is not None:
            self.exchange.shadow = Shadow(
                settings.shadow_policy,
                settings.policy_trust_root,
                self.exchange.tell,
                self.metrics.compared,
            )
        self.plane: MitmPlane | None = None
        self.listeners: Listeners | None = None
        self.addresses = Addresses()
        self.control: ControlServer | None = None
        self._proxy_tls: ServerTls | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.ready = False
        self._hung_up = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        wire_gauges(self)

    # --- starting ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the policies (PolicyError if they are bad: a daemon does not start on a bad policy),
        start the plane and open the listeners."""
        self.loop = asyncio.get_running_loop()
        self.policies.load()
        tokens = platform_tokens(self.settings)
        if tokens is not None:
            await tokens.source.read()  # later failures refuse tokens, but a daemon does not start so
            self._tasks.append(asyncio.create_task(tokens.source.follow(), name="platform keys"))
        upstream = Upstream(upstream_settings(self.settings))
        self.plane = MitmPlane(
            self.exchange,
            upstream,
            ClientTls(LeafIssuer(self.authority)),
            UpstreamTls(self.settings.upstream_ca_file),
            tokens,
            self.session_cas,
            refuse_inside_tls=self.settings.refuse_inside_tls,
        )
        self.listeners = Listeners(self.plane, self.settings.runtime, Resolver(self.metrics.dns_asked))
        self.state.on_revoked(self._revoked)
        if self.member is not None:
            self.member.start(self.exchange.buckets, self.exchange.approvals, self.telemetry.recent)
        self._tasks.append(asyncio.create_task(self.plane.run(), name="plane"))
        self._tasks.append(asyncio.create_task(self._keep_house(), name="housekeeping"))
        self._tasks.append(asyncio.create_task(self._answer_hang_ups(), name="reloading"))
        self._proxy_tls = proxy_tls(self.settings)
        self.addresses = await open_shared(self.listeners, self.settings, self._proxy_tls)
        for session_id, port in self.state.listeners().items():
            if not self.exchange.is_over(session_id):
                await self._reopen(self.listeners, session_id, port)
        if self.webhook is not None:
            self.webhook.start()
        self.sandboxes.adopt(self.state.listeners())
        self.control = ControlServer(self, self.settings, self.loop)
        self.control.start()
        if self.settings.parent_proxy is not None:
            cost = (
                f"everything leaves through {self.settings.parent_proxy}: it resolves names, so addresses"
                " behind them are screened by it or by nobody"
            )
            logger.warning(cost)
            self.telemetry.emit(DaemonEvent(time.time(), "parent_proxy", cost))
        # What stands by now stays for good: the collector need not look at it again, nor look so often. To
        # collect first would take a tenth of the start, for 2,500 of 210,000 objects.
        gc.freeze()
        gc.enable()  # `serve` begins without: imports make much to look at and little to collect
        gc.set_threshold(GARBAGE_THRESHOLD)
        self.ready = True
        self.telemetry.emit(DaemonEvent(time.time(), "ready"))

    async def _reopen(self, listeners: Listeners, session_id: str, port: int) -> None:
        """A session that outlived a restart gets its listener back where its sandbox will look for it."""
        try:
            if port in (SANDBOX_SOCKETS, OWN_SANDBOX):
                await listeners.open_sandbox(session_id)
            elif port:
                await listeners.open_tcp(session_id, port)
            else:
                await listeners.open_unix(session_id)
        except OSError as error:  # one lost port must not keep all the others waiting
            logger.error(
                "session %s cannot be reached: its listener (%s) could not be opened again: %s. "
                "End it and open another.",
                session_id, f"port {port}" if port > 0 else "socket", error.strerror or error,
            )  # fmt: skip

    def announce(self) -> None:
        """Log where everything is, then, beside the requests, what is wrong with the secrets."""
        for name, value in facts(self):
            logger.info("%s: %s", name, value)
        self._tasks.append(asyncio.create_task(self._look_at_secrets(), name="secrets"))

    async def _look_at_secrets(self) -> None:
        credentials = {
            credential: name
            for name, policy in sorted(self.state.policies.items())
            for credential in policy.credentials.values()
        }
        looked_at = dict(itertools.islice(credentials.items(), LOOKED_AT))
        wrong = await troubles(looked_at, self.stores.by_name, Stores(self.stores.by_name))
        silent = {each.store for each in wrong if not each.credential}
        for name in sorted(self.stores.by_name.keys() - silent):
            logger.info("secret store %s: answers", name)
        for each in wrong:
            what = f"credential {each.credential}" if each.credential else f"secret store {each.store}"
            logger.warning("%s cannot be used: %s; %s", what, each.message, each.hint)

    # --- policies ------------------------------------------------------------------------------------

    async def reload(self) -> bool:
        """Read the policies again. A bad one changes nothing: `policies.last_refused` says why."""
        return await self.policies.reload()

    def hang_up(self) -> None:
        """SIGHUP: policies, the control API's grants and certificates, a CA that is to be trusted soon.

        Signals that come while one is answered are answered together.
        """
        self._hung_up.set()

    async def _answer_hang_ups(self) -> None:
        while True:
            await self._hung_up.wait()
            self._hung_up.clear()
            await self._chore(self.reload_all)

    async def reload_all(self) -> None:
        """What SIGHUP means."""
        await self.reload()
        if self.control is not None:
            await asyncio.to_thread(self.control.reload)
        self.trust = await asyncio.to_thread(self._write_trust)

    # --- living --------------------------------------------------------------------------------------

    async def _keep_house(self) -> None:
        """A chore that fails keeps no other from being done: while the disk of the state is full, a
        tightened policy must take effect all the same."""
        given_back = 0
        for second in itertools.count(1):
            await asyncio.sleep(SWEEP_SECONDS)
            await self._chore(self._sweep)
            ended = self.plane.ended if self.plane is not None else 0
            if ended - given_back >= GIVE_BACK_ENDED or second % GIVE_BACK_SWEEPS == 0:
                given_back = ended
                await self._chore(lambda: asyncio.to_thread(give_back_memory))
            await self._chore(self._look_after)
            if (shadow := self.exchange.shadow) is not None:
                await self._chore(functools.partial(asyncio.to_thread, shadow.look))

    async def _sweep(self) -> None:
        await asyncio.to_thread(self.state.sweep)
        self._unkept.over()

    async def _look_after(self) -> None:
        self.telemetry.settle(self.state.clock.now().wall)
        if self._proxy_tls is not None:
            self._proxy_tls.look()
        if self.control is not None:
            self.control.look()
        await self.policies.look()

    async def _chore(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        try:
            await work()
        except StateError as error:
            if self._unkept.noticed(error.message):
                logger.error("%s %s", error.message, error.hint)
        except Exception:
            logger.exception("housekeeping failed; it will be tried again")

    def _revoked(self, taken: Taken) -> None:
        """Called in the revoker's thread, after the revocation is visible: end what runs, now (I5)."""
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._cut, taken)

    def _cut(self, taken: Taken) -> None:
        if self.plane is not None:
            self.plane.abort_sessions(taken.sessions)
        if taken.what is not None:
            self.metrics.revoked(taken.what, self.state.clock.now().monotonic - taken.since)
        self.sessions_over(taken.sessions)

    def sessions_over(self, session_ids: tuple[str, ...]) -> None:
        """Let go of what was kept for them, some a turn: others' bytes must not wait for ten thousand."""
        over = [each for each in session_ids[:OVER_AT_ONCE] if self.exchange.is_over(each)]
        for session_id in over:
            if self.listeners is not None:
                self.listeners.session_over(session_id)
            self.exchange.session_ended(session_id)
        if self.loop is not None and over:
            is_over = self.exchange.is_over
            self.loop.run_in_executor(None, self.sandboxes.sessions_over, frozenset(over), is_over)
        if self.loop is not None and session_ids[OVER_AT_ONCE:]:
            self.loop.call_soon(self.sessions_over, session_ids[OVER_AT_ONCE:])

    def sandbox_changed(self, event: SandboxEvent) -> None:
        """Told to the audit log first: what could not be recorded there is refused, and no news."""
        self.telemetry.emit(event)
        self.feed.put(event)

    def _end_session(self, session_id: str, why: str) -> None:
        """Its sandbox is gone. In any thread."""
        try:
            self.state.end(session_id, "sandbox")
        except StateError as error:
            logger.error("session %s could not be ended (%s): %s", session_id, why, error)

    def _revoke_for_theft(self, session_id: str, why: str) -> None:
        self._take_beside(lambda: self.state.revoke(session_id, "policy:revoke_on_theft", why))

    def _end_probed_session(self, session_id: str, why: str) -> None:
        self._take_beside(lambda: self.state.revoke(session_id, "secret_probed", why))

    def _end_probed_grant(self, session_id: str, credential: str, why: str) -> None:
        """Of the session and of those that were forked from it, which hold its strings."""
        self._take_beside(
            lambda: self.state.revoke_where(
                lambda each: each.id == session_id or session_id in each.ancestors,
                credential,
                "secret_probed",
                why,
            )
        )

    def _take_beside(self, take: Callable[[], object]) -> None:
        """In a thread: it waits for the disk."""

        def taking() -> None:
            try:
                take()
            except StateError as error:
                logger.error("a session could not be restricted: %s", error)

        if self.loop is not None:
            self.loop.run_in_executor(None, taking)

    # --- ending --------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Refuse what is new, let requests finish and sandboxes fall asleep, up to their deadlines."""
        self.ready = False
        self.exchange.draining = True
        self.telemetry.emit(DaemonEvent(time.time(), "draining"))
        if self.listeners is not None:
            self.listeners.stop_accepting()
        deadline = time.monotonic() + self.settings.drain_seconds
        while self.exchange.calls and time.monotonic() < deadline:  # noqa: ASYNC110 - bounded by the deadline
            await asyncio.sleep(0.05)
        if self.control is not None:
            await self.control.put_to_sleep()

    async def stop(self) -> None:
        self.ready = False
        await asyncio.to_thread(self.sandboxes.close)
        if self.webhook is not None:
            await asyncio.to_thread(self.webhook.stop)
        if self.control is not None:  # not on this loop: what it still answers may need this one
            await asyncio.to_thread(self.control.stop)
        if self.listeners is not None:
            self.listeners.stop_accepting()
        if self.plane is not None:
            self.plane.abort_all(Reason.DRAINING)
            self.plane.stop()
        await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.store.close()
        self.exchange.tell(DaemonEvent(time.time(), "stopped"))
        if self.member is not None:
            await self.member.stop()
        self.state.close()
        self.telemetry.close(time.time())
        self.loop = None  # what is queued there still finds nothing to do

    # --- wiring --------------------------------------------------------------------------------------

    def _write_trust(self) -> TrustFiles:
        """The public half of the CA, where sandboxes' launchers can read it: not in the state directory."""
        runtime = self.settings.runtime
        runtime.mkdir(parents=True, exist_ok=True)
        runtime.chmod(0o711)  # a way to trust/ and to the control socket, which asks who calls; no listing
        directory = runtime / "trust"
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)
        return write_trust_files(directory, trusted(self.directory.ca, self.authority))

    @property
    def control_addresses(self) -> tuple[tuple[str, int], ...]:
        """Of the control API over TCP."""
        return self.control.addresses if self.control is not None else ()

    @property
    def proxy_address(self) -> tuple[str, int] | None:
        """Of the shared listener that clients know as their proxy."""
        return self.addresses.proxy

    def trust_for(self, session_id: str) -> TrustFiles:
        """What a session's sandbox must trust: its own CA where it has one, else the daemon's."""
        own = self.session_cas.trust(session_id) if self.session_cas is not None else None
        return own if own is not None else self.trust

    def _resume_usage(self) -> None:
        """Sessions that outlived a restart go on being counted, from what the audit log says of them."""
        live = [s for s in self.state.sessions.by_id.values() if alive(s, self.state.clock.now()) is None]
        for session in live:
            self.usage.resume(session.id, session.tenant, session.subject, session.opened_at)
        if live:  # reads all files of the log: only where somebody depends on it
            self.usage.replay(records(self.directory.audit / "audit.jsonl", last=None))


async def run(
    settings: Settings, stores: Mapping[str, SecretStore] | None = None, *, announce: bool = False
) -> None:
    """The daemon as a process: until SIGTERM or SIGINT; SIGHUP reloads the policies.

    A second SIGTERM ends a drain early. `announce`: log where it is, and which secrets it cannot use. Raises
    what `Daemon` and `start` raise.
    """
    protect_process()
    raise_file_limit()
    daemon = Daemon(settings, stores)
    loop = asyncio.get_running_loop()
    ending = asyncio.Event()
    hurry = asyncio.Event()

    def end() -> None:
        (hurry if ending.is_set() else ending).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, daemon.hang_up)
    try:
        await daemon.start()
        notify("READY=1", notify_socket())
        if announce:
            daemon.announce()
        await ending.wait()
        notify("STOPPING=1", notify_socket())
        draining = asyncio.ensure_future(daemon.drain())
        hurrying = asyncio.ensure_future(hurry.wait())
        await asyncio.wait((draining, hurrying), return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        draining.cancel()
    finally:
        await daemon.stop()


def wire_gauges(daemon: "Daemon") -> None:
    """Set all of them. Each is called in the control API's threads, and only reads."""
    pulled, state = daemon.metrics.pulled, daemon.state
    pulled.sessions = lambda: float(
        sum(not daemon.exchange.is_over(session_id) for session_id in state.sessions.by_id)
    )
    pulled.active_connections = lambda: float(len(daemon.plane.connections)) if daemon.plane else 0.0
    pulled.warm_pool = lambda: daemon.sandboxes.pool.counts()
    pulled.approvals_waiting = lambda: float(len(daemon.exchange.approvals.held))
    replica = state.replica
    if replica is not None:
        pulled.owed = lambda: replica.database.debt
    pulled.ca_expiry = lambda: daemon.authority.not_after.timestamp()
    pulled.credentials = lambda: {name for policy in state.policies.values() for name in policy.credentials}
    pulled.breaker_open = lambda: any(
        getattr(store, "breaker_open", False) for store in daemon.stores.by_name.values()
    )

    def secret_ages() -> dict[str, float]:
        ages = daemon.store.ages()
        return {
            credential.name: ages[str(credential.secret)]
            for policy in state.policies.values()
            for credential in policy.credentials.values()
            if str(credential.secret) in ages
        }

    pulled.secret_ages = secret_ages
