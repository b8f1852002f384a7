"""Masked parts of secrets are counted over the answers of a session and its line, and end what it may use."""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import RequestHead, ResponseHead
from coatcheck.decision.policy import Credential
from coatcheck.decision.scrub import Patterns, Run, Sought
from coatcheck.decision.session import Session
from coatcheck.decision.verdict import Inject, Injection, Pass
from coatcheck.policy import load_policy
from coatcheck.request import probing
from coatcheck.request.known_secrets import KnownSecrets
from coatcheck.request.probing import PARTS_ALLOWED, Probing
from coatcheck.request.response import Answer
from coatcheck.state.sessions import NewSession
from coatcheck.state.state import State
from coatcheck.telemetry.events import Alarm
from tests.known_secrets import known_secret
from tests.request.known_world import ONE

NAME = "memory:secret/one#key"
SECRET = known_secret("probed").removeprefix("sk-test-")
PART, WHOLE = Run(NAME, 14, False), Run(NAME, 40, True)


@dataclass
class World:
    state: State
    told: list[Alarm] = field(default_factory=list)
    grants: list[tuple[str, str]] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.probing = Probing(self.state, self.told.append)
        self.probing.end_grant = lambda session, credential, why: self.grants.append((session, credential))
        self.probing.end_session = lambda session, why: self.sessions.append(session)

    def open(self, parent: str | None = None, granted: bool = True) -> Session:
        wanted = NewSession(
            "acme", "agent", "one", parent=parent, credentials=None if granted else frozenset()
        )
        return self.state.open_session(wanted, "test")[0]

    @property
    def credential(self) -> Credential:
        return self.state.policies["one"].credentials["one"]

    def verdict(self, session: Session) -> Inject:
        rule = self.state.policies["one"].rules[0]
        return Inject(session, rule, (Injection(self.credential, None),))

    def masked(self, session: Session, *runs: Run) -> Reason | None:
        refused = self.probing.masked(session, runs, "https://example.org")
        return refused.reason if refused is not None else None


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    state = State.open(tmp_path / "sessions", emit=lambda event: None)
    state.swap_policies({"one": load_policy("one", ONE.format(name="one").encode())})
    yield World(state)
    state.close()


def test_the_third_part_ends_the_grant_and_is_not_shown(world: World) -> None:
    """Whichever answers they were in; each is an alarm that holds no letter of it."""
    session = world.open()
    assert [world.masked(session, PART) for _ in range(2)] == [None, None]
    assert world.probing.refuses(session, world.verdict(session)) is None and world.grants == []
    assert world.masked(session, PART) is Reason.SECRET_PROBED
    assert world.grants == [(session.id, "one")] and world.sessions == []
    refused = world.probing.refuses(session, world.verdict(session))
    assert refused is not None and refused.reason is Reason.SECRET_PROBED
    assert world.probing.refuses(session, Pass(session, world.verdict(session).rule)) is None
    assert [alarm.reason for alarm in world.told] == [Reason.SECRET_PROBED] * PARTS_ALLOWED
    assert (
        world.told[0].detail
        == f"part 1 of {NAME}, 14 characters, masked in an answer from https://example.org"
    )


def test_a_further_part_ends_the_session(world: World) -> None:
    """What it asks for no longer needs the credential: it would go on guessing elsewhere."""
    session = world.open()
    assert world.masked(session, PART, PART, PART, PART) is Reason.SECRET_PROBED
    assert world.sessions == [session.id]
    refused = world.probing.refuses(session, None)
    assert refused is not None and refused.reason is Reason.SECRET_PROBED
    world.probing.forget(session.id)
    assert world.probing.refuses(session, None) is None


def test_a_session_without_a_grant_of_it_ends_with_the_third(world: World) -> None:
    """There is nothing else to take."""
    session = world.open(granted=False)
    assert [world.masked(session, PART) for _ in range(3)] == [None, None, Reason.SECRET_PROBED]
    assert world.grants == [] and world.sessions == [session.id]


def test_whole_secrets_and_signatures_are_not_counted(world: World) -> None:
    """Who has a whole one to guess with has it already; a signature has no name."""
    session = world.open()
    assert world.masked(session, *[WHOLE, Run("", 20, False)] * 10) is None
    assert world.told == []


def test_a_fork_goes_on_where_its_parent_was(world: World) -> None:
    """Else each fork would have three of its own. Sessions that are not in its line count for themselves."""
    parent = world.open()
    world.masked(parent, PART, PART)
    child, other = world.open(parent.id), world.open()
    world.probing.forget(parent.id)
    assert world.masked(other, PART, PART) is None
    assert world.masked(child, PART) is Reason.SECRET_PROBED


def test_a_grant_that_ended_is_refused_with_that_reason(world: World) -> None:
    """Its handle would otherwise be one that was never granted."""
    session = world.open()
    policy = world.state.policies["one"]
    taken = Deny(Reason.HANDLE_OUT_OF_SCOPE, "in any words", ungranted="one")
    assert world.probing.named(session, taken, policy) is taken
    world.masked(session, PART, PART, PART)
    world.state.revoke_where(lambda each: each.id == session.id, "one", "test")
    session = world.state.session(session.id)
    assert world.probing.named(session, taken, policy).reason is Reason.SECRET_PROBED
    other = Deny(Reason.HOST_NOT_ALLOWED)
    assert world.probing.named(session, other, policy) is other
    named_alike = Deny(Reason.HANDLE_OUT_OF_SCOPE, "credential one", ungranted="another one")
    assert world.probing.named(session, named_alike, policy) is named_alike


def test_what_is_counted_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go first."""
    monkeypatch.setattr(probing, "MAX_COUNTED", 2)
    first, second, third = (world.open() for _ in range(3))
    for session in (first, second, first, third):
        world.masked(session, PART)
    assert world.masked(second, PART, PART) is None


class Watched:
    """Answers to one session, searched for its secret as a real one is."""

    def __init__(self, world: World) -> None:
        self.world, self.session = world, world.open()
        patterns = Patterns.of([Sought(NAME, SECRET)])
        self.known = cast("KnownSecrets", SimpleNamespace(patterns=lambda session: patterns))

    def answer(self, *headers: tuple[str, str]) -> Answer:
        head = RequestHead("GET", "/", (), "HTTP/1.1")
        answer = Answer(head, self.session, self.known)
        began = answer.begin(
            ResponseHead(200, headers, "HTTP/1.1"),
            authenticated=False,
            keep_set_cookie=False,
            websocket=False,
            end_stream=False,
        )
        assert not isinstance(began, Deny)
        return answer

    def look_at(self, answer: Answer) -> Reason | None:
        refused = self.world.probing.look_at(answer, self.session, "https://example.org")
        return refused.reason if refused is not None else None


def test_a_part_counts_when_it_is_seen_and_not_when_it_ends(world: World) -> None:
    """A stream that stays open after a mask, or is left there, answers a guess as one that ends does."""
    watched = Watched(world)
    seen = []
    for _ in range(3):
        answer = watched.answer()
        sent = answer.feed(f"guess: {SECRET[:13]} \n".encode())
        seen.append(watched.look_at(answer))
        assert sent == [b"guess: ************* \n"]
    assert seen == [None, None, Reason.SECRET_PROBED]


def test_an_answer_that_is_left_is_counted(world: World) -> None:
    """A range that ends behind a mask, or a client that is gone."""
    watched = Watched(world)
    for _ in range(2):
        answer = watched.answer()
        answer.feed(f"guess: {SECRET[:13]} \n".encode())
        watched.look_at(answer)
        answer.break_off()
        assert watched.look_at(answer) is None
    assert len(world.told) == 2


def test_a_secret_in_pieces_is_not_counted_once_it_is_whole(world: World) -> None:
    """Lines of a PEM file come one by one."""
    watched = Watched(world)
    for _ in range(5):
        answer = watched.answer()
        for piece in (SECRET[:16], SECRET[16:]):
            answer.feed(f"{piece}\n".encode())
            assert watched.look_at(answer) is None
    assert world.told == []


@pytest.mark.parametrize("behind", ["", "\n", "\n" * 10, " \n" * 300])
def test_a_guess_inside_a_compressed_file_is_counted(world: World, behind: str) -> None:
    """That the answer ends says that the guess was right."""
    watched = Watched(world)
    answer = watched.answer()
    assert isinstance(answer.feed(gzip.compress(f"guess: {SECRET[:13]}{behind}".encode())), Deny)
    watched.look_at(answer)
    assert [alarm.reason for alarm in world.told] == [Reason.SECRET_PROBED]


def test_whole_secrets_do_not_push_a_part_out(world: World) -> None:
    """An upstream that shows a secret a hundred times beside a guess."""
    watched = Watched(world)
    answer = watched.answer()
    answer.feed((f"{SECRET}\n" * 100 + f"{SECRET[:13]} \n" + "\n" * 300).encode())
    watched.look_at(answer)
    assert len(world.told) == 1
