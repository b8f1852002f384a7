"""What one daemon's page shows is on the pages of all while that daemon lives, and nobody can forge it."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from coatcheck.decision.denial import Reason
from coatcheck.decision.policy import Limit, LimitKind, LimitScope
from coatcheck.decision.session import Now
from coatcheck.fleet import boards
from coatcheck.fleet.boards import Board, SharedBoards
from coatcheck.fleet.store import Store
from coatcheck.state.levels import Level
from coatcheck.telemetry.recent import AlarmGroup
from tests.system.fleet.fleet import until
from tests.system.fleet.postgres_server import PostgresServer
from tests.system.fleet.test_limits import server_of

pytestmark = pytest.mark.needs_debian("/usr/lib/postgresql")

ALARM = AlarmGroup("acme", "ses_a", Reason.HANDLE_WRONG_HOST, "openai", 1.0, 2.0, 3, "why", "GET https://x/")
LEVEL = Level("default", "models", Limit(LimitKind.REQUESTS, 60, 60.0, 10, LimitScope.TENANT), ("acme",), 0.9)


@dataclass
class Page:
    store: Store
    own: Board = field(default_factory=Board)
    shared: SharedBoards = field(init=False)

    def __post_init__(self) -> None:
        self.shared = SharedBoards(self.store, lambda: Now(time.time(), time.monotonic()), lambda: self.own)

    def sees(self) -> Board:
        return Board(tuple(self.shared.alarms()), tuple(self.shared.levels()))


@contextmanager
def pages(server: PostgresServer, directory: Path, count: int = 2) -> Iterator[list[Page]]:
    where = server_of(server, directory)
    made: list[Page] = []
    with ExitStack() as stack:
        for number in range(count):
            name = f"daemon-{number}"
            server.do("INSERT INTO members VALUES (%s, now())", name)
            page = Page(Store(where, bytes(32), "coatcheck", name, 10.0))
            page.shared.start()
            stack.callback(page.shared.stop)
            made.append(page)
        yield made


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "LOOK_SECONDS", 0.02)


def test_alarms_and_limits_of_one_are_seen_by_the_other_until_it_is_gone(
    server: PostgresServer, short: Path
) -> None:
    """As they are now; nobody sees its own twice."""
    with pages(server, short) as (one, other):
        other.own = Board((ALARM,), (LEVEL,))
        until(lambda: one.sees() == other.own)
        other.own = Board((replace(ALARM, count=4),))
        until(lambda: one.sees() == other.own)
        assert other.sees() == Board()
        other.shared.stop()
        server.do("DELETE FROM members WHERE name = 'daemon-1'")
        until(lambda: one.sees() == Board())


def test_who_writes_to_the_database_puts_nothing_on_a_page(server: PostgresServer, short: Path) -> None:
    """Neither what is not sealed, nor another daemon's in somebody else's name; and reads no names there."""
    with pages(server, short, count=3) as (one, other, third):
        other.own, third.own = Board((ALARM,)), Board((replace(ALARM, count=7),))
        until(lambda: len(one.sees().alarms) == 2)
        stored = repr(server.do("SELECT * FROM boards")).encode()
        assert b"acme" not in stored
        assert b"openai" not in stored
        third.shared.stop()
        server.do(
            "UPDATE boards SET sealed = (SELECT sealed FROM boards WHERE member = 'daemon-1')"
            " WHERE member = 'daemon-2'"
        )
        until(lambda: one.sees().alarms == (ALARM,))
        server.do("UPDATE boards SET sealed = %s WHERE member = 'daemon-2'", b'{"at": 1}')
        other.own = Board((replace(ALARM, count=5),))
        until(lambda: one.sees().alarms == other.own.alarms)


def test_a_database_that_is_away_leaves_nothing_old_on_the_page_and_all_comes_back(
    server: PostgresServer, short: Path
) -> None:
    """What others raised is not known then; what stands there is told anew, as it may be gone."""
    with pages(server, short) as (one, other):
        other.own = Board((ALARM,))
        until(lambda: one.sees() == other.own)
        server.kill()
        until(lambda: one.sees() == Board())
        server.start()
        until(lambda: one.sees() == other.own)


def test_where_nobody_looks_and_nothing_changes_nothing_is_asked(
    server: PostgresServer, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fleet of a hundred must not read each other's every two seconds for nothing."""
    with pages(server, short, count=1) as (one,):
        asked: list[tuple[bytes, bool]] = []
        looks = 0

        def count() -> Board:
            nonlocal looks
            looks += 1
            return one.own

        def told(own: bytes, *, wanted: bool) -> list[bytes]:
            asked.append((own, wanted))
            return []

        monkeypatch.setattr(one.store, "boards", told)
        monkeypatch.setattr(one.shared, "_own", count)
        one.own = Board((ALARM,))
        until(lambda: looks > 5)
        assert [wanted for _, wanted in asked] == [False]
        one.shared.alarms()
        until(lambda: len(asked) > 3)
        assert set(asked[1:]) == {(b"", True)}


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"[]",
        b'{"at": "now"}',
        json.dumps({"at": 0.0, "alarms": [], "levels": []}).encode(),
        json.dumps({"at": 1000.0, "alarms": [["acme", "ses_a", "a_new_reason"]], "levels": []}).encode(),
        json.dumps({"at": 1000.0, "alarms": [], "levels": [["p", "r", ["x", 1, 1, 1, "y"], [], 1]]}).encode(),
    ],
)
def test_what_is_old_or_of_another_release_is_left_out(written: Any) -> None:
    """A page shows the rest."""
    assert boards.read(written, 1000.0) == Board()


def test_what_is_written_has_a_bound() -> None:
    """However much a sandbox does: the newest and the fullest."""
    many = Board((ALARM,) * 500, (LEVEL,) * 500)
    assert boards.read(boards.write(many, 5.0), 5.0) == Board((ALARM,) * 50, (LEVEL,) * 50)
