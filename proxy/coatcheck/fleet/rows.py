"""What a row of the fleet's tables holds, and how a change alters it.

A row holds, sealed, the few changes that lead to its present content. A daemon that reads it applies them,
and so needs no history. Each row is sealed for its table, id, plain columns and revision. The fleet's row
holds the sum of a keyed mark for every row. If a program without the key puts an old row back, or swaps or
removes rows, the sum no longer fits (an additive multiset hash: Clarke and others, ASIACRYPT 2003).
"""

import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from coatcheck.decision.message import Origin
from coatcheck.fleet.seal import Seal, SealBroken
from coatcheck.state.change_json import read, written
from coatcheck.state.changes import (
    Change,
    Closed,
    CredentialsLeft,
    HandleRevoked,
    KeysChanged,
    Minted,
    Opened,
    Rebound,
    Renewed,
)
from coatcheck.state.database import Status
from coatcheck.state.fleet_approvals import (
    ApprovalAnswered,
    ApprovalGone,
    ApprovalRemembered,
    ApprovalWaiting,
)
from coatcheck.state.replica import Commit

KEYS: Final = "signing"
"""The id of the one row of keys."""
DIGEST_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Place:
    """Which row."""

    table: str
    id: str

    def __str__(self) -> str:
        return f"{self.table}/{self.id}"


@dataclass(frozen=True, slots=True)
class Row:
    place: Place
    rev: int
    sealed: bytes = field(repr=False)
    status: str = ""
    origin: str = ""
    """Both of sessions alone. Sealed rows say the same; the database's index needs it in plain."""


@dataclass(frozen=True, slots=True)
class Head:
    """The fleet's row: how far its commits have come, and what all rows together must amount to."""

    incarnation: int
    """Grows whenever the fleet begins anew. In microseconds, so that two daemons which begin one apart choose
    different numbers."""
    rev: int
    digest: int
    base: int
    """The revision at which rows were last dropped: a daemon that is behind it reads all rows."""


class Rows:
    """Seals and opens rows of one fleet. Not thread-safe, as `Seal` is not."""

    def __init__(self, seal: Seal, key: bytes, member: str) -> None:
        self._seal, self._member = seal, member
        self._mark_key = hmac.digest(key, b"coatcheck row marks", "sha256")
        self._name_key = hmac.digest(key, b"coatcheck row names", "sha256")

    # --- rows ----------------------------------------------------------------------------------------------

    def entry(self, incarnation: int, row: Row) -> Commit:
        """What the row says. SealBroken."""
        content = self._seal.open(_where(incarnation, row), row.sealed)
        try:
            plain = json.loads(content)
            return Commit(plain["by"], plain["at"], tuple(read(each) for each in plain["changes"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SealBroken(f"the row {row.place}: {error}; is this coatcheck older?") from None

    def row(self, incarnation: int, rev: int, place: Place, changes: Sequence[Change], at: float) -> Row:
        lines = [written(change) for change in changes]
        content = json.dumps({"by": self._member, "at": at, "changes": lines}).encode()
        bare = Row(place, rev, b"", _status(changes), self._origin(changes))
        return replace(bare, sealed=self._seal.seal(_where(incarnation, bare), content))

    def mark(self, incarnation: int, row: Row) -> int:
        """What the row adds to the digest."""
        where = _where(incarnation, row).encode()
        return int.from_bytes(hmac.digest(self._mark_key, where + b"\0" + row.sealed, "sha256"))

    def place(self, change: Change) -> Place | None:
        """The row that a change is about; None for renewals, which have a table of their own."""
        match change:
            case Opened(session):
                return Place("sessions", session.id)
            case Rebound(session_id) | Closed(session_id) | CredentialsLeft(session_id):
                return Place("sessions", session_id)
            case Minted(handle):
                return self._handle(handle.claims.sid, handle.claims.jti)
            case HandleRevoked(session_id, jti):
                return self._handle(session_id, jti)
            case KeysChanged():
                return Place("keys", KEYS)
            case ApprovalWaiting(name) | ApprovalGone(name):
                return Place("approvals", self.name("asked", name))
            case ApprovalAnswered(name):
                return Place("approvals", self.name("answered", name))
            case ApprovalRemembered(question):
                return Place("approvals", self.name("allowed", question))
            case Renewed():
                return None

    def origin(self, origin: Origin) -> str:
        """As the index knows it."""
        return self.name("origin", f"{origin.kind.value}|{origin.value}")

    def name(self, kind: str, name: str) -> str:
        """What the database knows of a name: nothing but whether it is the same."""
        return hmac.digest(self._name_key, f"{kind}|{name}".encode(), "sha256").hex()[:32]

    def _handle(self, session_id: str, jti: str) -> Place:
        return Place("handles", self.name("handle", f"{session_id}|{jti}"))

    def _origin(self, changes: Iterable[Change]) -> str:
        for change in changes:
            if isinstance(change, Opened):
                return self.origin(change.session.origin)
        return ""

    # --- the fleet's row -----------------------------------------------------------------------------------

    def head(self, incarnation: int, rev: int, sealed: bytes) -> Head:
        """SealBroken: our key is another, or someone without the key wrote it."""
        content = self._seal.open(f"fleet|{incarnation}|{rev}", sealed)
        digest, base = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        return Head(incarnation, rev, int.from_bytes(digest), int.from_bytes(base))

    def sealed_head(self, head: Head) -> bytes:
        content = head.digest.to_bytes(DIGEST_BYTES) + head.base.to_bytes(8)
        return self._seal.seal(f"fleet|{head.incarnation}|{head.rev}", content)


def total(digest: int, *, plus: Iterable[int] = (), minus: Iterable[int] = ()) -> int:
    """The digest with marks added and taken away."""
    return (digest + sum(plus) - sum(minus)) % (1 << 8 * DIGEST_BYTES)


def merged(before: Sequence[Change], change: Change) -> tuple[Change, ...]:
    """What a row says after `change`. The same as before: it says so already.

    What takes is kept although there is no row (any more): another daemon may know what it is about.
    """
    match change:
        case Rebound(_, generation):
            return tuple(
                Opened(
                    replace(each.session, generation=max(generation, each.session.generation)),
                    each.lease_until,
                )
                if isinstance(each, Opened)
                else each
                for each in before
            )
        case CredentialsLeft(_, credentials):
            if not any(isinstance(each, Opened | CredentialsLeft) for each in before):
                return (*before, change)
            return tuple(_without(each, credentials) for each in before)
        case Closed(_, status, _):
            closed = next((each for each in before if isinstance(each, Closed)), None)
            if closed is not None and (status is not Status.REVOKED or closed.status is Status.REVOKED):
                return tuple(before)
            return (*(each for each in before if not isinstance(each, Closed)), change)
        case HandleRevoked():
            if not before:
                return (change,)
            return tuple(
                Minted(replace(each.handle, revoked=True)) if isinstance(each, Minted) else each
                for each in before
            )
        case Opened() | Minted():
            return tuple(before) if before else (change,)
        case _:
            return (change,)


def entries_of(opened: Iterable[tuple[Row, Commit]]) -> list[Commit]:
    """What was committed at once as one entry, in the order of the commits; sessions before their handles."""
    by_rev: dict[int, list[tuple[Row, Commit]]] = {}
    for row, entry in opened:
        by_rev.setdefault(row.rev, []).append((row, entry))
    found: list[Commit] = []
    for rev in sorted(by_rev):
        rows = sorted(by_rev[rev], key=lambda each: each[0].place.table != "sessions")
        first = rows[0][1]
        found.append(Commit(first.by, first.at, tuple(change for _, each in rows for change in each.changes)))
    return found


def opened_in(changes: Iterable[Change]) -> Opened | None:
    return next((each for each in changes if isinstance(each, Opened)), None)


def closed_in(changes: Iterable[Change]) -> Closed | None:
    return next((each for each in changes if isinstance(each, Closed)), None)


def _without(change: Change, credentials: frozenset[str]) -> Change:
    match change:
        case Opened(session, until):
            return Opened(replace(session, credentials=session.credentials & credentials), until)
        case CredentialsLeft(session_id, left):
            return CredentialsLeft(session_id, left & credentials)
        case _:
            return change


def _status(changes: Sequence[Change]) -> str:
    closed = closed_in(changes)
    if closed is not None:
        return closed.status.value
    return Status.LIVE.value if opened_in(changes) is not None else ""


def _where(incarnation: int, row: Row) -> str:
    return f"{row.place.table}|{incarnation}|{row.place.id}|{row.origin}|{row.status}|{row.rev}"


type Known = Mapping[str, int]
"""Marks, by place."""
