"""The fleet's tables, as a daemon reads and changes them.

Each change begins by locking the fleet's row and ends by raising its revision, so that revisions follow the
order of commits and no reader skips one. `follower` reads and `publisher` writes; nothing is decided here.
What the database answers is believed only if its seal is right.
"""

import base64
import json
import select
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from coatcheck.fleet import schema
from coatcheck.fleet import statements as sql
from coatcheck.fleet.connection import Connector, SharedStateDown, explained
from coatcheck.fleet.rows import Head, Place, Row, Rows, total
from coatcheck.fleet.seal import Seal, SealBroken
from coatcheck.settings.shared_state import SharedStateServer
from coatcheck.state.change_json import read, written
from coatcheck.state.changes import TAKING, Change, Renewed
from coatcheck.state.replica import Commit

if TYPE_CHECKING:
    from coatcheck.fleet.postgres import Connection

MEMBER_SECONDS: Final = 30
"""A daemon that was not heard for this long is no member."""
RUNNING_SECONDS: Final = 60
"""What a daemon had running counts this long after it last said so."""
BOARD_SECONDS: Final = 60
MAX_NOTICE: Final = 7_000
"""Characters of a notification; PostgreSQL takes 7,999."""
USED_UP: Final = 1 << 31
WHOLE_SECONDS: Final = 30.0
"""For all rows, where nothing is served meanwhile."""
FIRST: Final = "0"
"""Before every transaction."""


class StateLost(Exception):
    """The shared state is not the one that we read before: restored from a backup, emptied, or promoted
    without the last commits."""


@dataclass(frozen=True, slots=True)
class Heard:
    time: float
    """The database's clock, Unix seconds."""
    members: int
    """Daemons that listened in the last half minute."""
    head: Head | None
    rows: tuple[Row, ...]
    """Those that changed after the revision that was asked for."""
    leases: tuple[tuple[str, str, bytes], ...]
    """Session, the transaction that renewed it, sealed lease."""
    snapshot: str
    """What began before this transaction is in `leases`."""


@dataclass(frozen=True, slots=True)
class Touched:
    """The rows that a change is judged by."""

    places: Collection[Place]
    origins: Collection[str] = ()
    """Also the live sessions that these prove."""


type Decide = Callable[[Head, Mapping[Place, tuple[Row, Commit]]], Mapping[Place, Sequence[Change]]]
"""From the rows as they are: what the changed ones shall say."""


class Store:
    """One connection, made when it is first needed. Not thread-safe. Each method raises SharedStateDown."""

    def __init__(
        self,
        server: SharedStateServer,
        key: bytes,
        fleet: str,
        member: str,
        timeout: float,
        *,
        connecting: float | None = None,
        listens: bool = False,
    ) -> None:
        """`timeout`: seconds for each answer. `connecting`: for a connection, where it is more."""
        self._server, self._timeout = server, timeout
        self._connector = Connector(server, connecting or timeout, f"coatcheck {member}"[:60])
        self.member = member
        """The name that our rows bear."""
        self._seal = Seal(key, fleet)
        self.rows = Rows(self._seal, key, member)
        self._schema, self._channel = schema.quoted(fleet), schema.channel(fleet)
        self._listens = listens
        self._connection: Connection | None = None
        self.on_taken: Callable[[Commit], None] = lambda entry: None
        """Called with what others took as soon as it is told, before it is read. It must not block."""
        self.incarnation = 0
        """Whose notifications are believed."""
        self._news = False

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def disconnect(self) -> None:
        """What follows begins on a new connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # --- reading -------------------------------------------------------------------------------------------

    def listen(self, rev: int, leases_after: str, *, seconds: float | None = None) -> Heard:
        """What came after, and that we are here: a commit, so that a primary that has lost its synchronous
        standby falls silent. One round trip."""
        _, _, clock, heads, rows, leases, _ = self._round(
            (sql.BEGIN_ONE_MOMENT, ()),
            (sql.HERE, (self.member,)),
            (sql.CLOCK, (MEMBER_SECONDS,)),
            (sql.HEAD, ()),
            (sql.ROWS, {"rev": rev}),
            (sql.LEASES, (leases_after,)),
            (sql.COMMIT, ()),
            seconds=seconds,
        )
        ((now, members, snapshot, version, oldest),) = clock
        if (version or 0) < schema.VERSION or (oldest or 0) > schema.VERSION:
            raise SharedStateDown(
                f"the shared state at {self._server} has tables of version {version}, this coatcheck needs"
                f" {schema.VERSION}: run what `coatcheck fleet tables` of the newest release prints"
            )
        head = self.rows.head(*heads[0]) if heads else None
        found = tuple(_row(each) for each in rows)
        return Heard(float(now), int(members), head, found, tuple(map(tuple, leases)), str(snapshot))

    def all_rows(self, seconds: float) -> tuple[Head | None, tuple[Row, ...]]:
        """Everything, as one moment had it."""
        _, heads, rows, _ = self._round(
            (sql.BEGIN_ONE_MOMENT, ()),
            (sql.HEAD, ()),
            (sql.ROWS, {"rev": -1}),
            (sql.COMMIT, ()),
            seconds=seconds,
        )
        return (self.rows.head(*heads[0]) if heads else None), tuple(_row(each) for each in rows)

    def wait(self, seconds: float) -> None:
        """Until somebody committed something, or so long."""
        connection = self._connection
        if self._news or connection is None or connection.closed:
            self._news = False
            return
        poll = select.poll()
        poll.register(connection.pgconn.socket, select.POLLIN)
        if not poll.poll(max(1, int(seconds * 1000))):
            return
        try:
            connection.pgconn.consume_input()
        except Exception as error:  # noqa: BLE001 - psycopg's: the connection ended
            self.disconnect()
            raise SharedStateDown(explained(self._server, error)) from None
        while (notify := connection.pgconn.notifies()) is not None:
            self._noticed(notify.extra.decode("utf-8", "replace"))
        self._news = False  # all of it was committed before what is asked next

    def opened_leases(self, incarnation: int, leases: Iterable[tuple[str, str, bytes]]) -> list[Renewed]:
        """Of sealed leases, those that are genuine: a forged one renews nothing, and hurts nobody."""
        found: list[Renewed] = []
        for session, _, sealed in leases:
            with suppress(SealBroken, ValueError, TypeError):
                seconds, until = json.loads(self._seal.open(f"lease|{incarnation}|{session}", sealed))
                found.append(Renewed(session, float(seconds), float(until)))
        return found

    # --- writing -------------------------------------------------------------------------------------------

    def change(
        self, incarnation: int, touched: Touched, decide: Decide, at: float, taken: Sequence[Change]
    ) -> int:
        """One commit: the rows that are touched, as `decide` wants them; its revision. What `decide` raises
        leaves everything as it was. StateLost: the fleet has begun anew. Two round trips.

        `taken` is told to the listeners in the notification itself, a round trip before they can read it.
        """
        head, before = self._locked(incarnation, touched)
        try:
            wanted = decide(head, before)
            changed = {
                place: changes
                for place, changes in wanted.items()
                if place not in before or before[place][1].changes != tuple(changes)
            }
            if not changed:
                self._round((sql.ROLLBACK, ()))
                return head.rev
            rev = head.rev + 1
            rows = [self.rows.row(incarnation, rev, place, changes, at) for place, changes in changed.items()]
            marks = [self.rows.mark(incarnation, row) for row in rows]
            gone = [self.rows.mark(incarnation, before[place][0]) for place in changed if place in before]
            after = replace(head, rev=rev, digest=total(head.digest, plus=marks, minus=gone))
        except BaseException:
            with suppress(SharedStateDown):
                self._round((sql.ROLLBACK, ()))
            raise
        self._commit(after, rows, self._notice(after, taken, at))
        return rev

    def renew(self, incarnation: int, renewals: Sequence[Renewed]) -> None:
        """Known to the others, and on the database's disk soon. One round trip."""
        sealed = [
            self._seal.seal(
                f"lease|{incarnation}|{each.session}", json.dumps([each.seconds, each.until]).encode()
            )
            for each in renewals
        ]
        sessions = [each.session for each in renewals]
        self._round(
            (sql.BEGIN, ()),
            (sql.NOT_FLUSHED, ()),
            (sql.RENEW, (sessions, sealed)),
            (sql.COMMIT, ()),
            again=True,
        )

    def found(self, seen: Head | None, incarnation: int, keys: Change, at: float) -> bool:
        """Begin an incarnation in place of what was `seen`, with these keys and nothing else. False: another
        daemon was faster."""
        place = self.rows.place(keys)
        assert place is not None  # noqa: S101 - for mypy
        row = self.rows.row(incarnation, 1, place, [keys], at)
        head = Head(incarnation, 1, self.rows.mark(incarnation, row), 1)
        if seen is None:
            self._round(
                (sql.BEGIN, ()),
                (sql.NEVER_COUNTED, ()),
                (sql.FIRST_HEAD, ()),
            )
            wanted = (0, 0)
        else:
            self._round((sql.BEGIN, ()))
            wanted = (seen.incarnation, seen.rev)
        (found,) = self._round((sql.LOCK, ()))
        if [each[:2] for each in found] != [wanted]:
            self._round((sql.ROLLBACK, ()))
            return False
        self._round(
            *((sql.DROP_ALL.replace("{t}", table), ()) for table in schema.SEALED), (sql.DROP_ALL_LEASES, ())
        )
        self._commit(head, [row], "")
        return True

    def drop(self, incarnation: int, marks: Mapping[Place, int], rev: int) -> Head | None:
        """Drop rows that nobody needs, with their marks. None: something was committed after `rev`."""
        _, heads = self._round((sql.BEGIN, ()), (sql.LOCK, ()))
        head = self.rows.head(*heads[0]) if heads else None
        if head is None or (head.incarnation, head.rev) != (incarnation, rev):
            self._round((sql.ROLLBACK, ()))
            return None
        after = Head(incarnation, rev + 1, total(head.digest, minus=marks.values()), rev + 1)
        gone = [
            (sql.DROP.replace("{t}", table), ([p.id for p in marks if p.table == table],))
            for table in schema.SEALED
        ]
        self._round(*gone, (sql.DROP_USELESS_LEASES, ()))
        self._commit(after, [], "")
        return after

    def tidy(self) -> None:
        """What says nothing any more, of daemons that are gone and limits that are full again."""
        self._round(
            (sql.DROP_MEMBERS, ()),
            (sql.DROP_RUNNING, (RUNNING_SECONDS,)),
            (sql.DROP_BOARDS, (BOARD_SECONDS,)),
            (sql.DROP_LIMITS, ()),
        )

    # --- limits and boards, which are not sealed into the digest -------------------------------------------

    def settle(
        self, limits: Sequence[tuple[str, bool, float, float]], hold: float
    ) -> tuple[float, list[float]]:
        """Add to each limit the seconds that were used of it, or (True) say how many run at once here. Since
        when the counts are kept; and for how many seconds each limit is used up, or how many run elsewhere.

        The last number is how many seconds the whole limit takes to fill. The tables are emptied by a crash
        of the database: a limit without a row begins used up then, and for `hold` seconds, in which every
        daemon says anew what it has running, as many as can be run elsewhere.
        """
        spent = [each for each in limits if not each[1]]
        counts = [each for each in limits if each[1]]
        names = [name for name, _, _, _ in counts]
        _, _, _, until, _, others, since, _ = self._round(
            (sql.BEGIN, ()),
            (sql.NOT_FLUSHED, ()),
            (sql.COUNTED_FROM_NOW, ()),
            (sql.SPEND, [[each[n] for each in spent] for n in (0, 2, 3)]),
            (sql.RUN, (self.member, names, [int(each[2]) for each in counts])),
            (sql.RUNNING_ELSEWHERE, (MEMBER_SECONDS, names, self.member, RUNNING_SECONDS)),
            (sql.COUNTED_SINCE, (hold,)),
            (sql.COMMIT, ()),
        )
        ((began, held),) = since
        told = dict(until) | dict.fromkeys(names, float(USED_UP) if held else 0.0)
        for name, count in others:
            told[name] = max(told[name], float(count))
        return float(began), [float(told[name]) for name, _, _, _ in limits]

    def boards(self, own: bytes, *, wanted: bool) -> list[bytes]:
        """Put `own` in place of what this daemon told before, unless it is empty; if they are `wanted`, those
        of the others that are genuine."""
        sealed = self._seal.seal(f"board|{self.member}", own) if own else b""
        *_, found, _ = self._round(
            (sql.BEGIN, ()),
            (sql.NOT_FLUSHED, ()),
            (sql.PUT_BOARD, (self.member, sealed, bool(own))),
            (sql.BOARDS, (MEMBER_SECONDS, wanted, self.member, BOARD_SECONDS)),
            (sql.COMMIT, ()),
        )
        genuine: list[bytes] = []
        for member, board in found:
            with suppress(SealBroken):
                genuine.append(self._seal.open(f"board|{member}", bytes(board)))
        return genuine

    # --- inside --------------------------------------------------------------------------------------------

    def _locked(self, incarnation: int, touched: Touched) -> tuple[Head, dict[Place, tuple[Row, Commit]]]:
        """The fleet's row, locked, and those that are touched."""
        ids = {
            table: [place.id for place in touched.places if place.table == table] for table in schema.SEALED
        }
        _, heads, *found = self._round(
            (sql.BEGIN, ()),
            (sql.LOCK, ()),
            (sql.SESSIONS_OF, (ids["sessions"], list(touched.origins))),
            *((sql.ROWS_OF.replace("{t}", table), (ids[table],)) for table in schema.SEALED[1:]),
            again=True,
        )
        try:
            head = self.rows.head(*heads[0]) if heads else None
            if head is None or head.incarnation != incarnation:
                raise StateLost("the shared state was begun anew a moment ago")
            rows = [_row(each) for answer in found for each in answer]
            return head, {row.place: (row, self.rows.entry(incarnation, row)) for row in rows}
        except BaseException:
            with suppress(SharedStateDown):
                self._round((sql.ROLLBACK, ()))
            raise

    def _commit(self, head: Head, rows: Sequence[Row], notice: str) -> None:
        puts: list[tuple[str, Any]] = []
        for table in schema.SEALED:
            of = [row for row in rows if row.place.table == table]
            values: list[Any] = [
                [row.place.id for row in of],
                [row.rev for row in of],
                [row.sealed for row in of],
            ]
            if of and table == "sessions":
                values += [[row.status for row in of], [row.origin for row in of]]
                puts.append((sql.PUT_SESSIONS, values))
            elif of:
                puts.append((sql.PUT.replace("{t}", table), values))
        over = [row.place.id for row in rows if row.place.table == "sessions" and row.status != "live"]
        if over:
            puts.append((sql.DROP_LEASES, (over,)))
        self._round(
            (sql.PUT_HEAD, (head.incarnation, head.rev, self.rows.sealed_head(head))),
            *puts,
            (sql.NOTIFY, (self._channel, notice)),
            (sql.COMMIT, ()),
        )

    def _notice(self, head: Head, changes: Sequence[Change], at: float) -> str:
        """What was taken, sealed for this commit: a daemon that reads it twice takes the same again."""
        taken = [written(change) for change in changes if isinstance(change, TAKING)]
        if not taken:
            return ""
        content = json.dumps({"by": self.member, "at": at, "changes": taken}).encode()
        sealed = base64.b64encode(self._seal.seal(f"notice|{head.incarnation}|{head.rev}", content)).decode()
        notice = f"{head.incarnation} {head.rev} {sealed}"
        return notice if len(notice) <= MAX_NOTICE else ""

    def _noticed(self, text: str) -> None:
        """In the middle of an answer: nothing may be asked here, and nothing raised."""
        self._news = True
        with suppress(SealBroken, ValueError, KeyError, TypeError):
            incarnation, rev, sealed = text.split(" ")
            if int(incarnation) != self.incarnation:
                return
            content = json.loads(
                self._seal.open(
                    f"notice|{int(incarnation)}|{int(rev)}", base64.b64decode(sealed, validate=True)
                )
            )
            changes = tuple(change for change in map(read, content["changes"]) if isinstance(change, TAKING))
            self.on_taken(Commit(content["by"], content["at"], changes))

    def _round(
        self, *statements: tuple[str, Any], seconds: float | None = None, again: bool = False
    ) -> list[list[Any]]:
        """One round trip. `again`: nothing is lost when it is sent twice, as it is where the connection was
        cut while it was idle."""
        idle = self._connection is not None
        try:
            return self._sent(statements, seconds)
        except SharedStateDown as error:
            if not (again and idle and isinstance(error, _Cut)):
                raise
            return self._sent(statements, seconds)

    def _sent(self, statements: Sequence[tuple[str, Any]], seconds: float | None) -> list[list[Any]]:
        try:
            connection = self._connection
            if connection is None:
                connection = self._connection = self._made()
            connection.deadline = time.monotonic() + (seconds or self._timeout)
            return connection.together(
                [(statement.replace("{s}", self._schema), about) for statement, about in statements]
            )
        except SharedStateDown:
            self.disconnect()
            raise
        except Exception as error:  # noqa: BLE001 - psycopg's, the system's, ssl's: each ends the connection
            self.disconnect()
            down = _Cut if _was_cut(error) else SharedStateDown
            raise down(explained(self._server, error)) from None

    def _made(self) -> "Connection":
        connection = self._connector.connect()
        if self._listens:
            from coatcheck.fleet.postgres import on_notify

            on_notify(connection, self._noticed)
            connection.deadline = time.monotonic() + self._timeout
            connection.execute(f'LISTEN "{self._channel}"'.encode())
            self._news = False
        return connection


class _Cut(SharedStateDown):
    """The connection is of no use any more: it was cut, or its user has been dropped since."""


def _was_cut(error: Exception) -> bool:
    """Not where another attempt would only wait as long again."""
    return not isinstance(error, TimeoutError) and type(error).__name__ != "LockNotAvailable"


def _row(plain: Sequence[Any]) -> Row:
    table, name, rev, sealed, status, origin = plain
    return Row(Place(table, name), int(rev), bytes(sealed), status, origin)
