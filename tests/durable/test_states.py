"""How a sandbox gets from one state to another, and what of that cannot happen. Supervisors that are killed:
test_sandboxes.py; daemons: tests/faults."""

import json
import logging
import os
import queue
import shutil
import socketserver
import subprocess
import tempfile
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from coatcheck.durable import run_directory
from coatcheck.durable.durability import Durability, RestorePoint
from coatcheck.durable.entries import Entry
from coatcheck.durable.recovery import Step, next_step
from coatcheck.durable.sandboxes import Sandboxes
from coatcheck.durable.states import TRANSITIONS, Event, State
from coatcheck.durable.store import ASLEEP, SNAPSHOTS
from coatcheck.launcher.spec import SOCKET
from coatcheck.sandbox.sandbox import Ending, SandboxProblem, SandboxRefused, SandboxState
from coatcheck.settings.daemon import Settings
from coatcheck.telemetry.events import SandboxEvent
from tests.durable.test_store import WANTED, begin, keeper, people, sandbox, save

ID = sandbox().id


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)), ids=str)
def test_what_is_not_in_the_table_does_not_happen(
    caplog: pytest.LogCaptureFixture, state: State, event: Event
) -> None:
    """It is logged: somebody believed that it could. What is in it does, and callers see that."""
    entry = Entry(ID, state=state, sandbox=sandbox())
    before = entry.sandbox
    after = TRANSITIONS[state].get(event)
    with caplog.at_level(logging.ERROR):
        assert entry.move(event, detail="a test") is (after is not None)
    if after is None:
        assert (entry.state, entry.sandbox) == (state, before)
        assert caplog.messages == [f"sandbox {ID} is {state}, so this is refused: {event}"]
    else:
        assert entry.state is after and entry.known.state is after.shown and entry.known.detail == "a test"
        assert entry.known.recoverable is (after in (State.RESTORABLE, State.RESTORING))


def test_every_state_is_reached_and_none_is_a_trap() -> None:
    """From one of the two first ones to each, and from each to the end."""

    def reached(start: State) -> set[State]:
        found, new = {start}, [start]
        while new:
            following = set(TRANSITIONS[new.pop()].values()) - found
            found |= following
            new += following
        return found

    assert set(TRANSITIONS) == reached(State.ADMITTED) | reached(State.WARMING) == set(State)
    assert all(State.ENDED in reached(each) for each in State)


def test_only_one_place_changes_a_state() -> None:
    """All others ask `Entry.move`, which asks the table."""
    package = Path(__file__).parents[2] / "proxy/coatcheck"
    changing = [path.name for path in package.rglob("*.py") if "entry.state =" in path.read_text()]
    assert changing == []


# --- a sandbox that sleeps, or can be restored, and an earlier daemon left behind --------------------------


class Left:
    """Its directory in the state, and a daemon that has just begun."""

    def __init__(self, directory: Path, where: str, **different: int) -> None:
        settings = Settings(state_dir=directory, runtime_dir=directory / "run", **different)  # type: ignore[arg-type]
        before = keeper(directory)
        begin(before, "ses_1")
        place = before.place(ID)
        self.saved = save(before, place / where, 1)
        self.events: list[SandboxEvent] = []
        self.ended: list[str] = []
        self.sandboxes = Sandboxes(settings, self.events.append, lambda each, why: self.ended.append(each))
        self.sandboxes.adopt({})
        self.events.clear()

    @property
    def state(self) -> str:
        found = self.sandboxes.get(ID)
        assert found is not None
        return found.state + (", recoverable" if found.recoverable else "")

    def start(self) -> None:
        admitted = self.sandboxes.admit(WANTED, ID)
        self.sandboxes.start(admitted, people("ses_2"), RestorePoint(str(self.saved), 1, (), ID))

    @property
    def changes(self) -> list[str]:
        return [each.change for each in self.events]


@pytest.fixture(params=[ASLEEP, f"{SNAPSHOTS}/one"], ids=["asleep", "restorable"])
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Left:
    return Left(tmp_path, request.param)


def test_a_return_that_fails_leaves_it_as_it_was(left: Left) -> None:
    """Only one caller at a time brings it back; when that fails, the next one may."""
    before = left.state
    for _ in range(2):
        admitted = left.sandboxes.admit(WANTED, ID)
        assert left.state == before and left.sandboxes.is_down(ID) and left.sandboxes.admitted() == {ID}
        with pytest.raises(SandboxRefused) as busy:
            left.sandboxes.admit(WANTED, ID)
        assert busy.value.problem is SandboxProblem.SANDBOX_BUSY
        left.sandboxes.withdraw(admitted)
    assert left.state == before and not left.sandboxes.admitted() and not left.changes


def test_one_that_may_not_come_back_is_told_as_refused(tmp_path: Path) -> None:
    """By its id; not when somebody else brings it back at the same time: it is there then."""
    left = Left(tmp_path, ASLEEP, max_sandboxes=1)
    admitted = left.sandboxes.admit(WANTED)
    with pytest.raises(SandboxRefused, match="runs 1 sandboxes already"):
        left.sandboxes.admit(WANTED, ID)
    (told,) = left.events
    assert (told.change, told.sandbox, told.ending) == ("refused", ID, SandboxProblem.TOO_MANY_SANDBOXES)
    left.sandboxes.withdraw(admitted)
    left.sandboxes.admit(WANTED, ID)
    with pytest.raises(SandboxRefused, match="is being restored right now"):
        left.sandboxes.admit(WANTED, ID)
    assert len(left.events) == 1


def test_one_that_is_killed_while_it_is_brought_back_stays_dead(left: Left) -> None:
    """Its sessions were being opened; what was saved of it is gone, and nothing starts."""
    admitted = left.sandboxes.admit(WANTED, ID)
    left.sandboxes.kill(ID, Ending.KILLED, "ended by a test")
    assert left.state == "ended" and not left.saved.exists() and left.changes == ["ended"]
    with pytest.raises(SandboxRefused, match="it was killed while it was being brought back") as refused:
        left.sandboxes.start(admitted, people("ses_2"), RestorePoint(str(left.saved), 1, (), ID))
    assert refused.value.problem is SandboxProblem.SANDBOX_ENDED
    left.sandboxes.withdraw(admitted)
    assert left.state == "ended" and left.changes == ["ended", "refused"]


def test_one_that_is_killed_while_its_supervisor_starts_stays_dead(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That supervisor is ended, and what it made is removed."""
    begun: list[subprocess.Popen[bytes]] = []

    def starts(*about: Any) -> "subprocess.Popen[bytes]":
        directory = left.sandboxes.directory(ID)
        directory.mkdir(parents=True)
        begun.append(subprocess.Popen([shutil.which("sleep") or "sleep", "1000"]))
        left.sandboxes.kill(ID, Ending.KILLED, "ended by a test")
        return begun[0]

    monkeypatch.setattr("coatcheck.durable.sandboxes.start", starts)
    with pytest.raises(SandboxRefused, match="it was killed while it was being brought back"):
        left.start()
    assert begun[0].wait(10) != 0
    left.sandboxes.settle(ID)
    assert left.state == "ended" and left.changes == ["ended", "refused"]
    assert not left.saved.exists() and not left.sandboxes.directory(ID).exists()


def test_a_report_that_comes_late_changes_nothing(left: Left) -> None:
    """It was under way when its supervisor was gone."""
    before = left.state
    for state in (SandboxState.RUNNING, SandboxState.PAUSED, SandboxState.ENDING):
        left.sandboxes.reported(ID, state)
    assert left.state == before and not left.changes


# --- a sandbox that was killed, and its daemon died before anything came of that ----------------------------


class Killed:
    """It ran, a caller killed it, and all that its daemon did was to record that. The next one has begun."""

    def __init__(self, directory: Path, where: str, *, first: Ending = Ending.KILLED, gone: bool) -> None:
        self.settings = Settings(state_dir=directory, runtime_dir=directory / "run")
        before = keeper(directory)
        begin(before, "ses_1", of=RAN)
        self.saved = save(before, before.place(ID) / where, 1)
        last = Sandboxes(self.settings, lambda _: None, lambda *_: None)
        self.place = last.directory(ID)
        self.place.mkdir(parents=True)
        run_directory.describe(self.place, RAN)
        self.lock = run_directory.lock(self.place)
        last.adopt({})
        for ending in dict.fromkeys((first, Ending.KILLED)):
            last.kill(ID, ending, "ended by a test")
        assert run_directory.read(self.place) == RAN  # no supervisor listens, and nothing was swept
        if gone:
            os.close(self.lock)
        self.ended: list[str] = []
        self.sandboxes = Sandboxes(self.settings, lambda _: None, lambda each, why: self.ended.append(each))

    def is_gone(self) -> bool:
        found = self.sandboxes.get(ID)
        assert found is not None and found.ending is not None
        return (
            found.past
            and not self.saved.exists()
            and not self.place.exists()
            and self.sandboxes.kept.record(ID) is None
            and next_step(found, (), time.time()) is Step.NOTHING
        )


RAN = replace(
    sandbox(),
    state=SandboxState.RUNNING,
    sessions={"agent": "ses_1"},
    keeping=Durability(sleeps=True, recovers=True),
    expires_at=time.time() + 3600,
)
SAVED_AS = pytest.mark.parametrize("where", [ASLEEP, f"{SNAPSHOTS}/one"], ids=["asleep", "restorable"])
FIRST = pytest.mark.parametrize("first", [Ending.KILLED, Ending.MACHINE_ENDED], ids=str)


@SAVED_AS
@FIRST
def test_one_that_was_killed_is_not_brought_back_by_the_next_daemon(
    tmp_path: Path, where: str, first: Ending
) -> None:
    """Its supervisor is gone. Killed while it ran, or while it was ending of something that is recovered."""
    killed = Killed(tmp_path, where, first=first, gone=True)
    killed.sandboxes.adopt({})
    assert killed.is_gone() and set(killed.ended) == {"ses_1"}


@SAVED_AS
@FIRST
def test_one_that_was_killed_ends_though_its_supervisor_is_still_there(
    tmp_path: Path, where: str, first: Ending
) -> None:
    """It is not taken for one that runs, whatever its directory and its supervisor say."""
    killed = Killed(tmp_path, where, first=first, gone=False)
    killed.sandboxes.adopt({})
    now = killed.sandboxes.reported(ID, SandboxState.RUNNING)
    assert now is not None and now.state is SandboxState.ENDING and killed.ended == ["ses_1"]
    with pytest.raises(SandboxRefused) as busy:
        killed.sandboxes.admit(WANTED, ID)
    assert busy.value.problem is SandboxProblem.SANDBOX_BUSY
    os.close(killed.lock)
    killed.sandboxes.settle(ID)
    assert killed.is_gone()


@SAVED_AS
def test_one_that_was_killed_stays_dead_when_the_host_went_down_with_it(tmp_path: Path, where: str) -> None:
    """There is no run directory any more."""
    killed = Killed(tmp_path, where, gone=True)
    shutil.rmtree(killed.place)
    killed.sandboxes.adopt({})
    assert killed.is_gone() and killed.ended == ["ses_1"]


def test_a_supervisor_that_the_last_daemon_did_not_tell_is_told_to_end() -> None:
    """As the record says why."""
    with tempfile.TemporaryDirectory(prefix="cch-") as directory:  # short: a socket's path has 107 bytes
        _is_told(Killed(Path(directory), ASLEEP, gone=False))


def _is_told(killed: Killed) -> None:
    told: queue.Queue[object] = queue.Queue()

    class Supervisor(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.put((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def address_string(self) -> str:
            return "a Unix socket"

    with socketserver.UnixStreamServer(str(killed.place / SOCKET), Supervisor) as server:
        server.timeout = 10
        killed.sandboxes.adopt({})
        server.handle_request()
    assert told.get(timeout=10) == ("/kill", {"ending": "killed", "detail": "ended by a test"})


@SAVED_AS
def test_one_that_ended_otherwise_keeps_what_was_saved_of_it(tmp_path: Path, where: str) -> None:
    """Also when its supervisor, asked to stop by somebody else, called that killed."""
    before = keeper(tmp_path)
    begin(before, "ses_1", of=RAN)
    saved = save(before, before.place(ID) / where, 1)
    settings = Settings(state_dir=tmp_path, runtime_dir=tmp_path / "run")
    last = Sandboxes(settings, lambda _: None, lambda *_: None)
    place = last.directory(ID)
    place.mkdir(parents=True)
    run_directory.describe(place, RAN)
    held = run_directory.lock(place)
    last.adopt({})
    last.reported(ID, SandboxState.ENDING, Ending.KILLED, "its supervisor was asked to stop")
    os.close(held)
    sandboxes = Sandboxes(settings, lambda _: None, lambda *_: None)
    sandboxes.adopt({})
    found = sandboxes.get(ID)
    assert found is not None and not found.past and saved.exists()
