"""What an inspection needs of the daemon, and how it gets there: secrets are on the plane's loop."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from coatcheck.decision.policy import Policy
from coatcheck.decision.session import Session
from coatcheck.inspection.holdings import Holdings, Served, Store, collect
from coatcheck.inspection.inspector import Inspector
from coatcheck.telemetry.audit.checkpoint import CheckpointSigner
from coatcheck.telemetry.events import Event


class Sessions(Protocol):
    @property
    def by_id(self) -> Mapping[str, Session]: ...


class State(Protocol):
    @property
    def sessions(self) -> Sessions: ...

    @property
    def policies(self) -> Mapping[str, Policy]: ...


class Exchange(Protocol):
    @property
    def secrets(self) -> Served: ...


class Audit(Protocol):
    @property
    def signer(self) -> CheckpointSigner: ...


class Telemetry(Protocol):
    @property
    def emit(self) -> Callable[[Event], None]: ...


class Daemon(Protocol):
    """`serve.Daemon`, as far as it is used here."""

    @property
    def state(self) -> State: ...

    @property
    def store(self) -> Store: ...

    @property
    def exchange(self) -> Exchange: ...

    @property
    def audit(self) -> Audit: ...

    @property
    def telemetry(self) -> Telemetry: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The plane's."""


def inspector_of(daemon: Daemon) -> Inspector:
    """The daemon's inspector. It belongs to whichever loop uses it first."""

    async def on_the_planes_loop(sessions: Sequence[str]) -> tuple[Holdings, Mapping[str, str]]:
        known = daemon.state.sessions.by_id
        names = sorted({known[each].policy for each in sessions if each in known})
        policies = {name: daemon.state.policies.get(name) for name in names}
        hashes = {name: policy.sha256 for name, policy in policies.items() if policy is not None}
        return await collect(policies, sessions, daemon.store, daemon.exchange.secrets), hashes

    async def collected(sessions: Sequence[str]) -> tuple[Holdings, Mapping[str, str]]:
        if daemon.loop is None:
            raise RuntimeError("the daemon has not started")
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(on_the_planes_loop(sessions), daemon.loop)
        )

    return Inspector(collected, daemon.audit.signer, daemon.telemetry.emit)
