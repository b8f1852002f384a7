"""A decision that takes long is told, and who finds a way to be slow cannot fill the log with it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from coatcheck.request.call import Call
from coatcheck.request.slow_decisions import QUIET_SECONDS, SLOW_SECONDS, SlowDecisions
from coatcheck.telemetry.events import Event, SlowDecision
from coatcheck.telemetry.metrics.metrics import Metrics

CALL = cast("Call", SimpleNamespace(request_id="r-1", session=SimpleNamespace(id="ses_1", tenant="acme")))


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def told() -> list[Event]:
    return []


def judge(slow: SlowDecisions, time: Time, seconds: float) -> None:
    with slow.judging(CALL):
        time.now = round(time.now + seconds, 6)


def rounded(told: list[Event]) -> list[Event]:
    return [replace(each, seconds=round(each.seconds, 6)) for each in told if isinstance(each, SlowDecision)]


def test_the_first_is_told_and_the_rest_are_counted(told: list[Event]) -> None:
    """Once a second, with the slowest of them."""
    time = Time()
    slow = SlowDecisions(told.append, time, lambda: 7.0)
    judge(slow, time, SLOW_SECONDS * 0.9)
    assert told == []
    judge(slow, time, 0.01)
    judge(slow, time, 0.03)
    judge(slow, time, 0.02)
    assert rounded(told) == [SlowDecision(7.0, "r-1", "ses_1", "acme", 0.01, 1)]
    time.now += QUIET_SECONDS
    judge(slow, time, 0.01)
    assert rounded(told)[1:] == [SlowDecision(7.0, "r-1", "ses_1", "acme", 0.03, 3)]


def test_one_that_fails_is_timed_all_the_same(told: list[Event]) -> None:
    """A failure may be what was slow."""
    time = Time()
    slow = SlowDecisions(told.append, time, lambda: 7.0)

    def fail() -> None:
        with slow.judging(CALL):
            time.now += 1.0
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert len(told) == 1


def test_all_of_them_are_in_the_metric(told: list[Event]) -> None:
    """Also those that were only counted."""
    metrics = Metrics()
    metrics(SlowDecision(7.0, "r-1", "ses_1", "acme", 0.03, 3))
    metrics(SlowDecision(9.0, "r-2", "", "", 0.01, 1))
    assert b"coatcheck_slow_decisions_total 4.0" in metrics.render()
