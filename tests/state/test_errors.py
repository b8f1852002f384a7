"""Errors are for people and for programs."""

from coatcheck.state import Problem, StateError


def test_an_error_says_what_happened_and_what_to_do() -> None:
    """The message is also what a traceback shows; the hint stands apart."""
    error = StateError(Problem.CAPACITY, "3 sessions are live", "End one.")
    assert (str(error), error.message, error.hint) == (
        "3 sessions are live",
        "3 sessions are live",
        "End one.",
    )
    assert error.reason == "capacity"
