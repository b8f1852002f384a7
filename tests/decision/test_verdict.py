"""The words in which refusals are given."""

import pytest

from coatcheck.decision.denial import EXPLANATIONS, Deny, Reason
from coatcheck.decision.verdict import Injection
from tests.decision.test_decide import CREDENTIALS


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_is_explained_to_an_agent(reason: Reason) -> None:
    """A status of the documented ones, what happened, and what to do next; nothing about other tenants."""
    explanation = EXPLANATIONS[reason]
    assert explanation.status in {401, 403, 407, 413, 421, 429, 502, 503}
    assert explanation.message
    assert not explanation.message.endswith(".")
    assert explanation.hint.endswith(".")


def test_no_handle_is_shown_by_an_injection() -> None:
    """Reprs end up in logs."""
    assert "cch_" not in repr(Injection(CREDENTIALS["api"], "cch_eyJsecretive"))


def test_a_deny_is_not_silent() -> None:
    """A refusal without detail still has its reason; it never counts as an alarm by default."""
    assert Deny(Reason.HOST_NOT_ALLOWED).alarm is False
