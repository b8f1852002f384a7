"""What of a daemon is read when somebody scrapes: the callables behind its gauges."""

from typing import Protocol

from coatcheck.certificates.authority import Authority
from coatcheck.exchange import Exchange
from coatcheck.launcher.service import Sandboxes
from coatcheck.planes.mitm import MitmPlane
from coatcheck.state.state import State
from coatcheck.stores.cache import CachedStore
from coatcheck.stores.router import Stores
from coatcheck.stores.vault import VaultStore
from coatcheck.telemetry.metrics import Metrics


class Daemon(Protocol):
    """`serve.Daemon`, as far as it is used here."""

    @property
    def metrics(self) -> Metrics: ...
    @property
    def state(self) -> State: ...
    @property
    def exchange(self) -> Exchange: ...
    @property
    def authority(self) -> Authority: ...
    @property
    def stores(self) -> Stores: ...
    @property
    def store(self) -> CachedStore: ...
    @property
    def plane(self) -> MitmPlane | None: ...
    @property
    def sandboxes(self) -> Sandboxes: ...


def wire_gauges(daemon: Daemon) -> None:
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
        isinstance(store, VaultStore) and store.breaker_open for store in daemon.stores.by_name.values()
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
