"""Any sequence of openings, forks, rebinds, renewals, revocations, clock steps and restarts: a handle counts
exactly when it should.

The model is ten lines: a session may act while it is not closed, its lease runs and its age allows it,
where time is the greatest that any clock ever showed. On its origin count the handles of its generation, and
those that its ancestors had when the first of the line between them was forked off.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from coatcheck.decision.denial import Reason
from coatcheck.decision.session import Session
from coatcheck.state import NewSession, StateError, StateSettings
from tests.state.house import House, counts, reason


@dataclass
class Expected:
    session: Session
    handles: list[str]
    """By generation, from the session's first on; those that the last one replaced are stale."""
    inherited: frozenset[str]
    lease_until: float
    expires_at: float
    closed: bool = False


SETTINGS = StateSettings(key_rotation=500)
"""Each sweep after so many seconds signs with a new key; what the ones before signed goes on counting."""


class SessionsModel(RuleBasedStateMachine):
    opened = Bundle("opened")

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.house = House(Path(self.directory.name) / "sessions")
        self.state = self.house.open(SETTINGS)
        self.time = self.house.time.wall
        self.expected: list[Expected] = []

    @rule(target=opened, lease=st.integers(1, 600), age=st.integers(1, 2_000))
    def open(self, lease: int, age: int) -> Expected:
        wanted = NewSession("t", "s", "agents", None, frozenset({"openai"}), lease_seconds=lease, max_age=age)
        return self.opened_as(wanted, frozenset(), lease, age)

    @rule(target=opened, parent=opened, lease=st.integers(1, 600), age=st.integers(1, 2_000))
    def fork(self, parent: Expected, lease: int, age: int) -> Expected:
        """Also of one that is over, as a sandbox that sleeps is woken or restored."""
        wanted = NewSession(
            "t", "s", "agents", None, frozenset({"openai"}),
            lease_seconds=lease, max_age=age, parent=parent.session.id,
        )  # fmt: skip
        return self.opened_as(wanted, parent.inherited.union(parent.handles), lease, age)

    def opened_as(self, wanted: NewSession, inherited: frozenset[str], lease: int, age: int) -> Expected:
        session, (handle,) = self.state.open_session(wanted, "launcher")
        entry = Expected(session, [handle.value], inherited, self.time + lease, self.time + age)
        self.expected.append(entry)
        return entry

    @rule(entry=opened)
    def rebind(self, entry: Expected) -> None:
        alive = self.alive(entry)
        try:
            _, (handle,) = self.state.rebind(entry.session.id, "launcher")
        except StateError:
            assert not alive
        else:
            assert alive
            entry.handles.append(handle.value)

    @rule(entry=opened)
    def rebind_twice(self, entry: Expected) -> None:
        """Past whatever was rebound before: an order of generations alone would forget what came first."""
        self.rebind(entry)
        self.rebind(entry)

    @rule(entry=opened, lease=st.integers(1, 600))
    def renew(self, entry: Expected, lease: int) -> None:
        alive = self.alive(entry)
        try:
            self.state.renew(entry.session.id, "launcher", lease)
        except StateError:
            assert not alive
        else:
            assert alive
            entry.lease_until = max(entry.lease_until, self.time + lease)

    @rule(entry=consumes(opened))
    def revoke(self, entry: Expected) -> None:
        self.state.revoke(entry.session.id, "operator")
        entry.closed = True

    @rule(seconds=st.integers(0, 400))
    def time_passes(self, seconds: int) -> None:
        self.house.time.passes(seconds)
        self.time += seconds
        self.state.clock.now()

    @rule(seconds=st.integers(1, 5_000))
    def the_wall_clock_steps_back(self, seconds: int) -> None:
        self.house.time.wall -= seconds

    @rule()
    def sweep(self) -> None:
        self.state.sweep()

    @rule(down=st.integers(0, 300))
    def restart(self, down: int) -> None:
        self.state = self.house.restart(self.state, down=down, settings=SETTINGS)
        self.time = max(self.time, self.house.time.wall)

    def alive(self, entry: Expected) -> bool:
        return not entry.closed and self.time < min(entry.lease_until, entry.expires_at)

    @invariant()
    def exactly_the_living_may_act(self) -> None:
        for entry in self.expected:
            refused = reason(self.state, entry.session) or counts(
                self.state, entry.session, entry.handles[-1]
            )
            assert (refused is None) == self.alive(entry), refused

    @invariant()
    def a_handle_counts_in_its_generation_and_where_it_was_inherited(self) -> None:
        every = {handle for entry in self.expected for handle in entry.handles}
        for entry in self.expected:
            if not self.alive(entry):
                continue
            counting = {each for each in every if counts(self.state, entry.session, each) is None}
            assert counting == entry.inherited | {entry.handles[-1]}
            for stale in entry.handles[:-1]:
                assert counts(self.state, entry.session, stale) is Reason.HANDLE_STALE

    def teardown(self) -> None:
        self.state.close()
        self.directory.cleanup()


TestSessionsModel = SessionsModel.TestCase
TestSessionsModel.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
