"""What a row says after a change, and what a program without the key can make of rows."""

from dataclasses import replace

import pytest

from coatcheck.decision.policy import Shape
from coatcheck.fleet.rows import Head, Place, Row, Rows, entries_of, merged, total
from coatcheck.fleet.seal import Seal, SealBroken
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
from tests.state.test_changes import ALL, HANDLE, SESSION

KEY = bytes(range(32))
OPENED = Opened(SESSION, 121.5)
ENDED = Closed("ses_1", Status.ENDED, 1.0)
REVOKED = Closed("ses_1", Status.REVOKED, 2.0)


def rows() -> Rows:
    return Rows(Seal(KEY, "web"), KEY, "daemon-1")


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        ((), OPENED, (OPENED,)),
        ((OPENED,), Rebound("ses_1", 5), (Opened(replace(SESSION, generation=5), 121.5),)),
        ((OPENED,), Rebound("ses_1", 1), (OPENED,)),
        ((OPENED,), ENDED, (OPENED, ENDED)),
        ((OPENED, ENDED), REVOKED, (OPENED, REVOKED)),
        ((OPENED, REVOKED), ENDED, (OPENED, REVOKED)),
        ((OPENED, ENDED), Closed("ses_1", Status.LAPSED, 3.0), (OPENED, ENDED)),
        (
            (OPENED,),
            CredentialsLeft("ses_1", frozenset({"github", "more"})),
            (Opened(replace(SESSION, credentials=frozenset({"github"})), 121.5),),
        ),
        ((), REVOKED, (REVOKED,)),
        ((), CredentialsLeft("ses_1", frozenset({"a"})), (CredentialsLeft("ses_1", frozenset({"a"})),)),
        (
            (CredentialsLeft("ses_1", frozenset({"a"})), ENDED),
            CredentialsLeft("ses_1", frozenset({"b"})),
            (CredentialsLeft("ses_1", frozenset()), ENDED),
        ),
        ((), Rebound("ses_1", 5), ()),
        ((), Minted(HANDLE), (Minted(HANDLE),)),
        (
            (Minted(replace(HANDLE, revoked=False)),),
            HandleRevoked("ses_1", "jti-1"),
            (Minted(replace(HANDLE, revoked=True)),),
        ),
        ((), HandleRevoked("ses_1", "jti-1"), (HandleRevoked("ses_1", "jti-1"),)),
        ((KeysChanged({"active": 1}),), KeysChanged({"active": 2}), (KeysChanged({"active": 2}),)),
    ],
)
def test_what_a_row_says_after_a_change(
    before: tuple[Change, ...], change: Change, after: tuple[Change, ...]
) -> None:
    """What was taken is never given back, and what takes is kept although there is no row."""
    assert merged(before, change) == after
    assert merged(after, change) == after


@pytest.mark.parametrize("change", [each for each in ALL if not isinstance(each, Renewed)])
def test_each_change_has_a_row_that_says_it(change: Change) -> None:
    """Another daemon reads it; its name and what it says are in no plain column."""
    place = rows().place(change)
    assert place is not None
    row = rows().row(7, 3, place, [change], 5.0)
    entry = Rows(Seal(KEY, "web"), KEY, "daemon-2").entry(7, row)
    assert (entry.by, entry.at, entry.changes) == ("daemon-1", 5.0, (change,))
    plain = repr((row.place, row.status, row.origin))
    assert not any(secret in plain for secret in ("acme", "issuer", "jti-1", "openai", "alice", "ab" * 32))


def test_renewals_have_a_table_of_their_own() -> None:
    """They are many, and an older one only names an earlier time."""
    assert rows().place(Renewed("ses_1", 1.0, 2.0)) is None


@pytest.mark.parametrize(
    "moved",
    [
        {"place": Place("sessions", "ses_2")},
        {"place": Place("handles", "ses_1")},
        {"rev": 4},
        {"status": "live"},
        {"origin": "0" * 32},
    ],
)
def test_a_row_is_bound_to_all_that_stands_beside_it(moved: dict[str, object]) -> None:
    """Table, id, revision, status and origin, and the fleet's incarnation."""
    row = rows().row(7, 3, Place("sessions", "ses_1"), [OPENED, REVOKED], 5.0)
    assert row.status == "revoked"
    changed: Row = replace(row, **moved)  # type: ignore[arg-type]
    for incarnation, each in ((7, changed), (8, row)):
        with pytest.raises(SealBroken):
            rows().entry(incarnation, each)
        assert rows().mark(incarnation, each) != rows().mark(7, row)


def test_the_digest_tells_what_was_put_back_or_taken_away() -> None:
    """It is that of the rows in any order, and of no others."""
    place = Place("sessions", "ses_1")
    old, new = (rows().row(7, rev, place, [OPENED], 5.0) for rev in (3, 4))
    other = rows().row(7, 2, Place("keys", "signing"), [KeysChanged({})], 5.0)
    marks = {each: rows().mark(7, each) for each in (old, new, other)}
    digest = total(0, plus=[marks[other], marks[old]])
    digest = total(digest, plus=[marks[new]], minus=[marks[old]])
    assert digest == total(0, plus=[marks[new], marks[other]])
    for wrong in ([old, other], [new], [old, new, other], [other]):
        assert digest != total(0, plus=[marks[each] for each in wrong])


def test_the_fleets_row_is_bound_to_its_numbers() -> None:
    """A revision that is raised or lowered by a program without the key is noticed."""
    head = Head(7, 3, (1 << 256) - 1, 2)
    sealed = rows().sealed_head(head)
    assert rows().head(7, 3, sealed) == head
    for incarnation, rev in ((7, 4), (7, 2), (8, 3)):
        with pytest.raises(SealBroken):
            rows().head(incarnation, rev, sealed)
    with pytest.raises(SealBroken):
        Rows(Seal(bytes(32), "web"), bytes(32), "x").head(7, 3, sealed)


def test_what_a_newer_coatcheck_wrote_is_not_guessed_at() -> None:
    """It is genuine, and means something that is not known here."""
    seal = Seal(KEY, "web")
    bare = Row(Place("keys", "signing"), 3, b"")
    sealed = seal.seal("keys|7|signing|||3", b'{"by": "x", "at": 1, "changes": ["[\\"new\\", 1]"]}')
    with pytest.raises(SealBroken, match="older"):
        rows().entry(7, replace(bare, sealed=sealed))


def test_what_was_committed_at_once_is_one_entry_with_sessions_first() -> None:
    """A handle is that of a session which must be there."""
    of = rows()
    changes: tuple[Change, ...] = (Minted(replace(HANDLE, shape=Shape("sk-", 48))), OPENED)
    made = [of.row(7, 4, of.place(each) or Place("", ""), [each], 5.0) for each in changes]
    later = of.row(7, 9, Place("sessions", "ses_2"), [Closed("ses_2", Status.ENDED, 1.0)], 6.0)
    entries = entries_of((row, of.entry(7, row)) for row in (later, *made))
    assert [entry.changes for entry in entries] == [changes[::-1], (Closed("ses_2", Status.ENDED, 1.0),)]
