"""One request is told once, whatever comes of it."""

from dataclasses import replace

from coatcheck.decision.denial import Reason
from coatcheck.telemetry.otel.requests import Request, Requests
from tests.telemetry.samples import COMPLETION, DECISION, DENIED, numbered


def test_an_allowed_request_is_told_at_its_end() -> None:
    """With its verdict."""
    requests = Requests()
    assert requests.add(DECISION) is None
    assert requests.add(COMPLETION) == Request(DECISION, COMPLETION)
    assert requests.rest() == []


def test_a_refused_one_at_once() -> None:
    """It has no other end."""
    assert Requests().add(DENIED) == Request(DENIED)


def test_one_that_is_refused_after_all_is_told_once() -> None:
    """Its verdict, what came instead, and nothing of the completion that follows."""
    requests, refused = Requests(), replace(DENIED, reason=Reason.UPSTREAM_UNREACHABLE)
    requests.add(DECISION)
    assert requests.add(refused) == Request(DECISION, refused=refused)
    assert requests.add(COMPLETION) is None


def test_a_completion_alone_says_nothing() -> None:
    """Whose it is stood in a decision that found no room."""
    assert Requests().add(COMPLETION) is None


def test_those_that_never_end_are_bounded_and_told_as_they_stand() -> None:
    """The oldest first; the others at the exporter's end."""
    requests = Requests(most=3)
    told = [requests.add(numbered(number)) for number in range(5)]
    assert told == [None, None, None, Request(numbered(0)), Request(numbered(1))]
    assert requests.rest() == [Request(numbered(number)) for number in (2, 3, 4)]
    assert requests.rest() == []
