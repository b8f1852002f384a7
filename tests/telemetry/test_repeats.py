"""Refusals that repeat are counted; nothing is ever left out of the count."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.denial import Reason
from coatcheck.telemetry.events import Event, Repeated
from coatcheck.telemetry.repeats import BURST, EVERY_SECONDS, TELL_SECONDS, Repeats
from tests.telemetry.samples import ALARM, COMPLETION, DECISION, DENIED, ENDED, OPENED

AT = DENIED.at


def test_a_flood_of_refusals_becomes_a_count() -> None:
    """The first ones have records; ten thousand more are one count, which says since when."""
    repeats = Repeats()
    admitted = [repeats.admit(replace(DENIED, at=AT + n / 1000)) for n in range(10_000)]
    assert admitted[:BURST] == [True] * BURST
    assert sum(admitted) == BURST + 1  # ten seconds earned one more
    assert repeats.due(AT + BURST / 1000) == []
    (told,) = repeats.due(AT + 11)
    assert told == Repeated(
        AT + 11, "decision", "s-1", "acme", Reason.HOST_NOT_ALLOWED, 10_000 - BURST - 1, AT + BURST / 1000
    )
    assert repeats.due(AT + 60) == []


def test_after_a_pause_refusals_have_records_again() -> None:
    """A session that was quiet for long is as new."""
    repeats = Repeats()
    while repeats.admit(DENIED):
        pass
    assert repeats.admit(replace(DENIED, at=AT + EVERY_SECONDS))
    assert not repeats.admit(replace(DENIED, at=AT + EVERY_SECONDS))
    later = replace(DENIED, at=AT + BURST * EVERY_SECONDS * 2)
    assert all(repeats.admit(later) for _ in range(BURST))


@pytest.mark.parametrize(
    "other",
    [
        replace(DENIED, session="s-2"),
        replace(DENIED, reason=Reason.HANDLE_STOLEN),
        replace(ALARM, session="s-1", reason=Reason.HOST_NOT_ALLOWED),
    ],
)
def test_a_flood_hides_nothing_of_another_kind(other: Event) -> None:
    """Another session, another reason, an alarm: each is recorded in the middle of the flood."""
    repeats = Repeats()
    while repeats.admit(DENIED):
        pass
    assert repeats.admit(other)


@pytest.mark.parametrize(
    "event",
    [
        DECISION,
        COMPLETION,
        OPENED,
        ENDED,
        replace(DENIED, reason=Reason.UPSTREAM_UNREACHABLE),
        replace(DENIED, reason=Reason.ADDRESS_REFUSED),
    ],
)
def test_what_was_allowed_is_recorded_each_time(event: Event) -> None:
    """Also a refusal that takes back a recorded verdict."""
    repeats = Repeats()
    assert all(repeats.admit(event) for _ in range(BURST * 3))
    assert repeats.due(AT + 1000, everything=True) == []


def test_memory_is_bounded_and_the_count_stays_whole() -> None:
    """Past the bound floods share a count without a session; ones that are over make room."""
    repeats = Repeats(max_floods=2)
    for number in range(4):
        for _ in range(BURST + 1):
            repeats.admit(replace(DENIED, session=f"s-{number}"))
    told = repeats.due(AT, everything=True)
    assert {each.session: each.count for each in told} == {"s-0": 1, "s-1": 1, "": BURST + 2}
    assert len(repeats.floods()) == 3
    repeats.admit(replace(DENIED, session="s-9", at=AT + 10_000))
    assert repeats.floods() == (("decision", "s-9", Reason.HOST_NOT_ALLOWED),)


@given(
    st.lists(
        st.tuples(
            st.floats(0, 30), st.sampled_from(["a", "b"]), st.sampled_from([Reason.CAPACITY, Reason.DRAINING])
        ),
        max_size=400,
    ),
    st.integers(1, 40),
)
def test_records_and_counts_add_up(steps: list[tuple[float, str, Reason]], repeat: int) -> None:
    """Whatever comes in whatever order: what was not recorded was counted, once, within TELL_SECONDS."""
    repeats = Repeats()
    recorded = counted = 0
    at = AT
    for pause, session, reason in steps:
        at += pause
        for _ in range(repeat):
            recorded += repeats.admit(replace(DENIED, at=at, session=session, reason=reason))
        for told in repeats.due(at):
            assert told.since + TELL_SECONDS <= at
            counted += told.count
    counted += sum(told.count for told in repeats.due(at, everything=True))
    assert recorded + counted == len(steps) * repeat
