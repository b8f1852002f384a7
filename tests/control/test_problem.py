"""Reasons and statuses."""

from coatcheck.control.problem import Refusal, from_state
from coatcheck.sandbox.sandbox import SandboxProblem
from coatcheck.state.errors import Problem, StateError


def test_every_reason_has_a_status() -> None:
    """A new one without would be a 500."""
    assert all(400 <= reason.status < 600 for reason in (*Refusal, *Problem, *SandboxProblem))


def test_no_reason_means_two_things() -> None:
    """The state's words, the sandboxes' and ours are one closed set for clients."""
    words = [str(each) for each in (*Refusal, *Problem, *SandboxProblem)]
    assert len(set(words)) == len(words)


def test_the_states_words_are_kept() -> None:
    """Message and hint are written for people already."""
    problem = from_state(StateError(Problem.UNKNOWN_SESSION, "what", "next"))
    assert (problem.reason, problem.status) == ("unknown_session", 404)
    assert (problem.message, problem.hint) == ("what", "next")
