"""A restored sandbox has what every later life was left with: no snapshot undoes a revocation.

Real sandboxes: test_sandbox_keeping.py, tests/system/e2e/test_lifecycles_of_one_launcher.py."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coatcheck.durable.durability import Durability, Incarnation, Lifecycle, RestorePoint
from coatcheck.durable.incarnations import Incarnations, Maker, WantedIdentity
from coatcheck.durable.sandbox import Admitted, Sandbox, SandboxIdentity
from coatcheck.durable.sandboxes import Sandboxes
from coatcheck.durable.store import SNAPSHOTS
from coatcheck.sandbox.sandbox import Ending, SandboxProblem, SandboxRefused, SandboxState
from coatcheck.settings.daemon import Settings
from coatcheck.state import Problem, State
from coatcheck.state.database import Status
from coatcheck.state.errors import StateError
from tests.durable.test_recovery import DEAD
from tests.durable.test_states import ID, Left
from tests.durable.test_store import WANTED as KEPT
from tests.durable.test_store import begin, keeper, people, sandbox, save
from tests.state.house import WANTED, House

BOTH = frozenset({"anthropic", "github"})
MAKER = Maker("launcher", lambda wanted, isolation: None)
SHARED = Durability(lifecycle=Lifecycle.SHARED, recovers=True)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "sessions")


@pytest.fixture
def state(house: House) -> Iterator[State]:
    opened = house.open()
    yield opened
    opened.close()


class Lives:
    """A sandbox with two people inside, life after life, each begun from what was saved of the first."""

    def __init__(self, state: State, keeping: Durability) -> None:
        self.state = state
        self.keeping = keeping
        self.lives: list[Incarnation] = []
        sandboxes: Any = SimpleNamespace(
            is_down=lambda _: True, kept=SimpleNamespace(saved=lambda *_: Path("newest"))
        )
        self.incarnations = Incarnations(sandboxes, state, self.opens, self.take)

    async def opens(self, *about: object) -> Any:
        raise AssertionError("no session is opened here")

    async def take(self, work: Callable[[], object]) -> object:
        return work()

    def begin(self) -> dict[str, str]:
        """The ids of its sessions, by whose they are."""
        sessions = {
            name: self.state.open_session(replace(WANTED, credentials=BOTH), "launcher")[0].id
            for name in ("agent", "tool")
        }
        granted = dict.fromkeys(sessions, tuple(sorted(BOTH)))
        self.lives.append(
            Incarnation(len(self.lives) + 1, sessions, granted, after=1 if self.lives else None)
        )
        return sessions

    def end(self) -> None:
        for each in self.lives[-1].sessions.values():
            self.state.end(each, "launcher")

    def back(self, generation: int = 1) -> dict[str, list[str] | None]:
        """Who would come back from what was saved of that life, and with which credentials."""
        comeback = RestorePoint("saved", generation, tuple(self.lives), "sbx_1")
        wanted: Any = SimpleNamespace(keeping=self.keeping, policy=WANTED.policy)
        return {
            each.name: list(each.credentials) if each.credentials is not None else None
            for each in self.incarnations.identities(comeback, wanted)
        }

    @property
    def sandbox(self) -> Sandbox:
        return replace(DEAD, sessions=self.lives[-1].sessions, keeping=self.keeping)


def test_who_is_brought_back_has_what_they_were_left_with(state: State) -> None:
    """All of it, where nobody took anything."""
    lives = Lives(state, SHARED)
    lives.begin()
    lives.end()
    assert lives.back() == {"agent": sorted(BOTH), "tool": sorted(BOTH)}


def test_going_back_to_before_a_revocation_does_not_undo_it(state: State) -> None:
    """The one who was revoked in the second life has nothing, though the first one was saved before."""
    lives = Lives(state, SHARED)
    lives.begin()
    lives.end()
    second = lives.begin()
    state.revoke(second["tool"], "operator")
    lives.end()
    assert lives.back() == {"agent": sorted(BOTH), "tool": []}
    assert not lives.incarnations.is_revoked(lives.sandbox)
    state.revoke(second["agent"], "operator")  # after its end
    assert lives.incarnations.is_revoked(lives.sandbox)


def test_a_credential_that_was_taken_in_a_later_life_stays_taken(state: State) -> None:
    """While it ran, or when it was down already."""
    lives = Lives(state, Durability(recovers=True))
    lives.begin()
    lives.end()
    second = lives.begin()
    state.revoke_where(lambda each: each.id == second["tool"], "github", "operator")
    lives.end()
    assert lives.back() == {"agent": sorted(BOTH), "tool": ["anthropic"]}
    state.keep(lambda: {each for life in lives.lives for each in life.sessions.values()})
    state.revoke_where(lambda _: True, "anthropic", "operator")
    assert lives.back() == {"agent": ["github"], "tool": []}


def test_what_was_imported_has_no_more_than_those_here_were_left_with(state: State) -> None:
    """Its generation says nothing here, so every life counts."""
    lives = Lives(state, Durability(recovers=True))
    first = lives.begin()
    state.revoke_where(lambda each: each.id == first["agent"], "github", "operator")
    lives.end()
    assert lives.back(generation=77) == {"agent": ["anthropic"], "tool": sorted(BOTH)}


def test_a_state_that_was_lost_brings_nobody_back(state: State) -> None:
    """It has lost what was revoked, too."""
    lives = Lives(state, Durability(recovers=True))
    lives.begin()
    lives.lives[0] = replace(lives.lives[0], sessions={"agent": "ses_of_another_state"})
    with pytest.raises(StateError) as caught:
        lives.back()
    assert caught.value.reason is Problem.UNKNOWN_SESSION
    assert lives.incarnations.is_revoked(lives.sandbox)


async def test_one_that_was_revoked_in_its_sleep_is_not_woken_by_using_it(state: State) -> None:
    """Only somebody who says so brings it back."""
    lives = Lives(state, Durability(sleeps=True))
    sessions = lives.begin()
    lives.end()
    state.revoke(sessions["tool"], "operator")
    with pytest.raises(SandboxRefused) as caught:
        await lives.incarnations.wake(replace(lives.sandbox, state=SandboxState.SLEEPING), MAKER)
    assert caught.value.problem is SandboxProblem.NOT_WOKEN
    assert "coatcheck sandbox restore sbx_1" in caught.value.hint


@pytest.mark.parametrize(
    ("keeping", "meanwhile", "revoked_then"),
    [
        (Durability(sleeps=True), True, {"agent", "tool"}),
        (Durability(sleeps=True), False, set()),
        (replace(SHARED, sleeps=True), True, {"agent"}),
    ],
)
async def test_one_that_is_revoked_while_it_is_woken_is_revoked(
    state: State,
    monkeypatch: pytest.MonkeyPatch,
    keeping: Durability,
    meanwhile: bool,
    revoked_then: set[str],
) -> None:
    """Between the look at its session and the next one there are disks and a kernel. Of several who share it,
    the others go on."""
    lives = Lives(state, keeping)
    before = lives.begin()
    lives.end()
    asleep = replace(lives.sandbox, state=SandboxState.SLEEPING)

    async def begin_again(*about: object) -> Sandbox:
        if meanwhile:
            state.revoke(before["agent"], "operator")
        return replace(asleep, state=SandboxState.STARTING, sessions=lives.begin())

    monkeypatch.setattr(lives.incarnations, "begin_again", begin_again)
    back = await lives.incarnations.wake(asleep, MAKER)
    statuses = {name: state.status(each) for name, each in back.sessions.items()}
    assert {name for name, status in statuses.items() if status is Status.REVOKED} == revoked_then
    assert {status for name, status in statuses.items() if name not in revoked_then} <= {Status.LIVE}


async def test_one_that_cannot_be_begun_may_be_tried_again(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fails after there was room for it gives that up: the next one is not told that it is busy."""
    left = Left(tmp_path, SNAPSHOTS + "/one")
    monkeypatch.setattr(left.sandboxes, "choose", lambda *_: KEPT.choice)
    lives = Lives(state, SHARED)
    incarnations = Incarnations(left.sandboxes, state, lives.opens, lives.take)
    for _ in range(2):
        with pytest.raises(StateError) as caught:  # this state knows nothing of its sessions
            await incarnations.begin_again(ID, MAKER, left.saved)
        assert caught.value.reason is Problem.UNKNOWN_SESSION
        assert not left.sandboxes.admitted()


# --- what is revoked while an incarnation begins ------------------------------------------------------------


class Beginning:
    """Real sandboxes and sessions; supervisors that do nothing. `meanwhile`: what happens at each moment."""

    def __init__(self, directory: Path, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = state
        self.source = self.session()
        self.opened: list[str] = []
        self.meanwhile: dict[str, Callable[[], object]] = {}
        self.supervisors: list[subprocess.Popen[bytes]] = []
        kept = keeper(directory)
        begin(kept, self.source, of=replace(sandbox(), sessions={"agent": self.source}))
        save(kept, kept.place(ID) / SNAPSHOTS / "one", 2)
        settings = Settings(state_dir=directory, runtime_dir=directory / "run")
        self.sandboxes = Sandboxes(settings, lambda _: None, lambda *_: None)
        self.sandboxes.adopt({})
        state.on_revoked(lambda taken: self.sandboxes.sessions_over(frozenset(taken.sessions), self.is_over))
        self.incarnations = Incarnations(self.sandboxes, state, self.opens, self.take)
        monkeypatch.setattr(self.sandboxes, "choose", lambda *_: KEPT.choice)
        monkeypatch.setattr("coatcheck.durable.sandboxes.start", self.starts)
        monkeypatch.setattr("coatcheck.durable.incarnations.BACK_SECONDS", 0.1)

    def session(self) -> str:
        return self.state.open_session(replace(WANTED, credentials=BOTH), "launcher")[0].id

    def is_over(self, session_id: str) -> bool:
        return self.state.status(session_id) is not Status.LIVE

    async def opens(self, admitted: Admitted, person: WantedIdentity, generation: int) -> SandboxIdentity:
        self.happens("before it is opened")
        self.opened.append(self.session())
        self.happens("once it is opened")
        (identity,) = people(self.opened[-1], generation=generation)
        return identity

    async def take(self, work: Callable[[], object]) -> object:
        return work()

    def starts(self, *about: Any) -> "subprocess.Popen[bytes]":
        self.happens("while its supervisor is started")
        self.supervisors.append(subprocess.Popen([shutil.which("sleep") or "sleep", "1000"]))
        return self.supervisors[-1]

    def happens(self, moment: str) -> None:
        self.meanwhile.get(moment, lambda: None)()

    async def ask(self, action: str) -> Sandbox:
        source = self.sandboxes.get(ID)
        assert source is not None
        if action == "restore":
            return await self.incarnations.restore(source, MAKER, None)
        (clone,) = await self.incarnations.fork(source, MAKER, None, 1)
        return clone

    def statuses(self) -> list[Status]:
        """Of the sessions that were opened."""
        return [self.state.status(each) for each in self.opened]

    def close(self) -> None:
        for each in self.supervisors:
            each.kill()
            each.wait(10)


@pytest.fixture
def beginning(tmp_path: Path, state: State, monkeypatch: pytest.MonkeyPatch) -> Iterator[Beginning]:
    made = Beginning(tmp_path, state, monkeypatch)
    yield made
    made.close()


@pytest.mark.parametrize("moment", ["", "once it is opened", "while its supervisor is started"])
async def test_a_session_that_is_revoked_before_its_sandbox_has_begun_ends_it(
    beginning: Beginning, moment: str
) -> None:
    """That revocation found no sandbox to end."""
    beginning.meanwhile[moment] = lambda: beginning.state.revoke(beginning.opened[-1], "operator")
    begun = await beginning.incarnations.make(KEPT, [WantedIdentity("agent", None)])
    now = beginning.sandboxes.get(begun.id)
    assert now is not None
    if not moment:
        assert now.state is SandboxState.STARTING
        return
    assert (now.state, now.ending) == (SandboxState.ENDING, Ending.SESSION_OVER)
    assert beginning.supervisors[-1].wait(10) != 0


@pytest.mark.parametrize("action", ["restore", "fork"])
@pytest.mark.parametrize("moment", ["before it is opened", "while its supervisor is started"])
async def test_whose_source_is_revoked_while_it_begins_is_revoked(
    beginning: Beginning, action: str, moment: str
) -> None:
    """A caller asked for a restore or a fork of one that was not revoked."""
    beginning.meanwhile[moment] = lambda: beginning.state.revoke(beginning.source, "operator")
    begun = await beginning.ask(action)
    assert set(beginning.statuses()) == {Status.REVOKED}
    assert begun.over and begun.ending is Ending.SESSION_OVER


@pytest.mark.parametrize("action", ["restore", "fork"])
@pytest.mark.parametrize("revoked", [False, True])
async def test_a_caller_may_begin_from_what_was_revoked_before(
    beginning: Beginning, action: str, revoked: bool
) -> None:
    """Who asks for that knows of it."""
    if revoked:
        beginning.state.revoke(beginning.source, "operator")
    begun = await beginning.ask(action)
    assert set(beginning.statuses()) == {Status.LIVE} and begun.state is SandboxState.STARTING
