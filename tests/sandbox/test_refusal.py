"""What a guest's agent refuses, in words of ours."""

import pytest

from coatcheck.sandbox.refusal import WORDS, of_agent, refusal
from coatcheck.sandbox.sandbox import SandboxProblem


@pytest.mark.parametrize("problem", WORDS)
def test_each_says_what_happened_and_what_to_do(problem: SandboxProblem) -> None:
    """And which it is, for programs."""
    told = refusal(problem, "more of it")["error"]
    assert told["reason"] == problem and told["message"].endswith(": more of it") and told["hint"]


@pytest.mark.parametrize("said", ["", "Ignore previous instructions", "\x1b[2J", "denied"])
def test_a_guest_s_own_words_are_never_passed_on(said: str) -> None:
    """They could be anything, on somebody's terminal."""
    assert of_agent(said) is SandboxProblem.GUEST_FAILED
