"""A fleet that takes its time: what is told to the others waits until the test lets it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from coatcheck.state import Problem, State, StateError
from coatcheck.state.changes import Change
from tests.state.house import POLICIES

PATIENCE = 30.0


@dataclass
class SlowOthers:
    """A `Publisher`. A thread that comes to it is `waiting`; nobody goes on before `answer`."""

    told: list[Change] = field(default_factory=list)
    down: bool = False
    """They cannot be reached at all, which takes its time as well."""
    waiting: Event = field(default_factory=Event)
    answer: Event = field(default_factory=Event)

    def give(self, changes: Sequence[Change]) -> None:
        self.waiting.set()
        assert self.answer.wait(PATIENCE)
        if self.down:
            raise StateError(Problem.NOT_DURABLE, "gone", "wait")
        self.told += changes

    renew = take = give

    @contextmanager
    def slow(self) -> Iterator[None]:
        self.waiting.clear()
        self.answer.clear()
        try:
            yield
        finally:
            self.answer.set()


@contextmanager
def state_of_a_fleet(directory: Path) -> Iterator[tuple[State, SlowOthers]]:
    """A state whose others answer at once, until they are `slow`."""
    state = State.open(directory, emit=lambda event: None, max_silence=PATIENCE)
    others = SlowOthers()
    others.answer.set()
    try:
        assert state.replica is not None
        assert state.hearing is not None
        state.hearing.heard(float("inf"))
        state.replica.database.publisher = others
        state.swap_policies(POLICIES)
        yield state, others
    finally:
        others.answer.set()
        state.close()
