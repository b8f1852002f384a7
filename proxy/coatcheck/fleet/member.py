"""This daemon as a member of its fleet: opens its state, and starts what keeps it equal to the others'."""

import asyncio
import hmac
import math
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from coatcheck.fleet.approvals import SharedApprovals
from coatcheck.fleet.boards import MOST, Board, SharedBoards
from coatcheck.fleet.follower import Bounds, Follower
from coatcheck.fleet.limits import SharedLimits
from coatcheck.fleet.publisher import PostgresPublisher
from coatcheck.fleet.seal import read_key
from coatcheck.fleet.store import Store
from coatcheck.request.approvals import Approvals
from coatcheck.settings.daemon import Settings
from coatcheck.state.buckets import Buckets
from coatcheck.state.levels import levels
from coatcheck.state.sessions import StateSettings
from coatcheck.state.state import State
from coatcheck.telemetry.events import Event
from coatcheck.telemetry.recent import Recent

HOST_CHARACTERS: Final = 60


class Member:
    """`start` it once, `stop` it last. A daemon that shares nothing has none."""

    def __init__(self, settings: Settings, state: State, emit: Callable[[Event], None]) -> None:
        """PrivateFileError when the key cannot be used."""
        server, key = settings.shared_state_server, settings.shared_state_key
        if server is None or key is None or state.replica is None or state.hearing is None:
            raise ValueError("nothing is shared")
        material, fleet = read_key(key), settings.shared_state_name
        self.name = f"{socket.gethostname()[:HOST_CHARACTERS]}-{secrets.token_hex(4)}"
        """Told to the others, and in their audit logs."""
        bounds = Bounds(
            settings.shared_state_max_silence,
            settings.shared_state_max_skew,
            StateSettings().key_rotation,
            settings.session_max_age,
        )

        def store(timeout: float = bounds.timeout, *, listens: bool = False) -> Store:
            connecting = max(timeout, bounds.max_silence * 0.8)
            return Store(server, material, fleet, self.name, timeout, connecting=connecting, listens=listens)

        self._store: Callable[[], Store] = store
        self._writing = store(bounds.write_timeout)
        self._state, self._replica = state, state.replica
        self._approvals: SharedApprovals | None = None
        self._boards: SharedBoards | None = None
        replica, hearing = state.replica, state.hearing
        replica.plausible = 2 * bounds.max_skew
        replica.database.publisher = PostgresPublisher(self._writing, replica, hearing)
        self.follower = Follower(store(listens=True), replica, hearing, bounds, emit)
        self.limits = SharedLimits(
            store(),
            hmac.new(material, b"coatcheck limits", "sha256").digest(),
            lambda: self.follower.members,
            lambda: state.clock.now().monotonic,
            bounds.max_silence,
        )

    def start(self, buckets: Buckets, approvals: Approvals, recent: Recent) -> None:
        """On the plane's loop."""
        self.follower.start()
        state, clock = self._state, self._state.clock

        def own() -> Board:
            near = levels(
                *buckets.used(), state.policies.values(), clock.now().monotonic, lambda scope, who: True
            )
            return Board(tuple(recent.alarms_here()[:MOST]), tuple(near[:MOST]))

        self._boards = SharedBoards(self._store(), clock.now, own)
        self._boards.start()
        recent.elsewhere, buckets.near_elsewhere = self._boards.alarms, self._boards.levels
        buckets.shares = self.limits
        self.limits.start()
        self._approvals = SharedApprovals(approvals, self._state, self._replica)
        self._approvals.start()

    async def stop(self) -> None:
        """Also one that was never started."""
        if self._approvals is not None:
            await self._approvals.stop()
        if self._boards is not None:
            await asyncio.to_thread(self._boards.stop)
        await self.limits.stop()
        await asyncio.to_thread(self.leave)

    def leave(self) -> None:
        """What only follows the state, in any thread; bounded, like `Follower.stop`."""
        self.follower.stop()
        self._writing.disconnect()


def open_state(
    settings: Settings, directory: Path, emit: Callable[[Event], None], seen_version: int | None
) -> State:
    """The state in `directory`, shared or not. What `State.open` raises."""
    shared = settings.shared_state is not None
    state_settings = StateSettings(
        max_age=settings.session_max_age,
        lease=settings.session_lease,
        max_lease=max(600.0, settings.session_lease),
        max_sessions=settings.max_sessions,
        # One daemon at a time may change the keys of a fleet: its follower does.
        key_rotation=math.inf if shared else StateSettings().key_rotation,
    )
    return State.open(
        directory,
        emit=emit,
        settings=state_settings,
        seen_version=seen_version,
        max_silence=settings.shared_state_max_silence if shared else None,
    )


def member_of(settings: Settings, state: State, emit: Callable[[Event], None]) -> Member | None:
    return Member(settings, state, emit) if settings.shared_state is not None else None
