"""The one session of the compatibility mode: a small daemon without listeners, inside mitmdump."""

import asyncio
import hashlib
import logging
import resource
import secrets
import shlex
import time
from pathlib import Path

from coatcheck.certificates.client_environment import (
    environment,
    file_variables,
    proxy_variables,
    trust_variables,
)
from coatcheck.certificates.trust import write_trust_files
from coatcheck.decision.message import Origin, OriginClass
from coatcheck.decision.policy import Policy
from coatcheck.planes.configured import upstream_settings
from coatcheck.planes.upstream.upstream import Upstream
from coatcheck.platform.private_files import write_atomically
from coatcheck.platform.state_directory import StateDirectory
from coatcheck.policy.bundle.bundle import refused
from coatcheck.policy.bundle.signed import signed_policies
from coatcheck.policy.in_force import forbid_observing
from coatcheck.policy.watch import PolicyWatch
from coatcheck.request.exchange import Exchange
from coatcheck.secrets.cache import CachedStore
from coatcheck.secrets.configured import make_stores
from coatcheck.secrets.router import Stores
from coatcheck.settings.daemon import Settings
from coatcheck.state.sessions import NewSession, StateSettings
from coatcheck.state.state import State
from coatcheck.telemetry.audit.checkpoint import CheckpointSigner
from coatcheck.telemetry.audit.log import AuditLog
from coatcheck.telemetry.events import DaemonEvent
from coatcheck.telemetry.metrics.metrics import Metrics
from coatcheck.telemetry.sinks import Telemetry
from coatcheck.telemetry.usage import UsageLedger

logger = logging.getLogger(__name__)

CALLER = "mitmdump"
SWEEP_SECONDS = 1.0


class StockSession:
    """State, audit log, secrets and one session for all clients that show its proxy password."""

    def __init__(self, settings: Settings) -> None:
        """Raises what opening each part raises; nothing is listened on."""
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would hold secrets
        self.settings = settings
        directory = StateDirectory.open(settings.state_dir)
        audit = AuditLog(
            directory.audit / "audit.jsonl",
            signer=CheckpointSigner.load_or_create(directory.path / "checkpoint-key.pem"),
            second_sink=settings.audit_checkpoints,
        )
        self._telemetry = Telemetry(audit, Metrics(), UsageLedger())
        self.state = State.open(
            directory.sessions,
            emit=self._telemetry.emit,
            settings=StateSettings(max_age=settings.session_max_age, lease=settings.session_lease),
            seen_version=audit.last_state_version(),
        )
        policy = _policy(settings, directory)
        self.state.swap_policies({policy.name: policy})
        self._store = CachedStore(
            Stores(make_stores(settings)), ttl=settings.secret_ttl, max_stale=settings.secret_max_stale
        )
        self.exchange = Exchange(self.state, self._store, self._telemetry.emit)
        self.upstream = Upstream(upstream_settings(settings))
        self._password = secrets.token_urlsafe(32)
        origin = Origin(OriginClass.BEARER, hashlib.sha256(self._password.encode()).hexdigest())
        wanted = NewSession(tenant="local", subject=CALLER, policy=policy.name, origin=origin)
        self.session, self._minted = self.state.open_session(wanted, CALLER)
        self._policy = policy
        self._renewed = time.monotonic()
        self._telemetry.emit(DaemonEvent(time.time(), "compatibility_mode", "in a stock mitmdump"))

    def write_environment(self, file: Path, host: str, port: int, ca: Path) -> None:
        """What a client needs, as shell lines, 0600: handles, proxy with its password, trust in `ca`."""
        variables: dict[str, str] = {}
        for minted in self._minted:
            if minted.env:
                variables[minted.env] = minted.value
            variables |= self._policy.credentials[minted.credential].inject.environment(minted.value)
        directory = self.settings.runtime / "trust"
        directory.mkdir(parents=True, exist_ok=True)
        trust = write_trust_files(directory, ca.read_bytes())
        url = f"http://sandbox:{self._password}@{host}:{port}"
        variables |= environment(trust_variables(trust), file_variables(trust), proxy_variables(url))
        lines = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
        write_atomically(file, lines.encode(), mode=0o600, overwrite=True)

    async def renew(self) -> None:
        """Renews the lease while mitmdump lives, and closes the books on what has lapsed."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await asyncio.to_thread(self.state.sweep)
                if time.monotonic() - self._renewed > self.session.lease_seconds / 3:
                    await asyncio.to_thread(self.state.renew, self.session.id, CALLER)
                    self._renewed = time.monotonic()
            except Exception:
                logger.exception("housekeeping failed; it will be tried again")

    async def close(self) -> None:
        """End the session: its handles are dead from now on."""
        self.exchange.draining = True
        try:
            self.state.end(self.session.id, CALLER)
            await self._store.close()
        finally:
            self.state.close()
            self._telemetry.close(time.time())


def _policy(settings: Settings, directory: StateDirectory) -> Policy:
    """The one policy. PolicyError, also when there are more: one session has one."""
    signed = signed_policies(settings.policy_trust_root, directory.path)
    found = tuple(PolicyWatch(settings.policy, signed=signed).read().values())
    if len(found) != 1:
        raise refused(
            f"{settings.policy} holds {len(found)} policies", "a stock mitmdump serves one: name it"
        )
    forbid_observing({found[0].name: found[0]})
    return found[0]
