"""One sandbox's connections wait for each other, and for nobody else's."""

import pytest

from coatcheck.planes.mitm import pace
from coatcheck.planes.mitm.pace import BURST, PER_SECOND, Pace


def test_a_burst_does_not_wait_and_what_follows_it_does() -> None:
    """Evenly, at the pace; another sandbox does not notice."""
    paced = Pace()
    assert [paced.wait("a", 100.0) for _ in range(BURST)] == [0.0] * BURST
    for number in range(1, 4):
        assert paced.wait("a", 100.0) == pytest.approx(number / PER_SECOND)
    assert paced.wait("b", 100.0) == 0.0


def test_who_keeps_to_the_pace_never_waits() -> None:
    """For an hour; and who has waited has its burst again."""
    paced = Pace()
    assert not any(paced.wait("a", 100.0 + number / PER_SECOND) for number in range(3600 * PER_SECOND))
    for _ in range(2 * BURST):
        paced.wait("b", 100.0)
    later = 100.0 + 2 * BURST / PER_SECOND
    assert [paced.wait("b", later) for _ in range(BURST)] == pytest.approx([0.0] * BURST, abs=1e-9)


def test_the_book_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that need not wait are forgotten for others; where all are busy, newcomers are let in."""
    monkeypatch.setattr(pace, "MAX_KEYS", 10)
    paced = Pace()
    for number in range(1000):
        assert paced.wait(str(number), 100.0 + number) == 0.0
        assert len(paced._full_at) <= 10
    for number in range(100):
        paced.wait(str(number), 2000.0)
    assert len(paced._full_at) == 10
