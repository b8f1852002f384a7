"""pydantic's errors come out in an editor's words; the busted_*.yaml files hold one of each."""

import pytest

from coatcheck.policyfile import PolicyError, load_policy
from coatcheck.policyfile.validation import POLICY_PARTS


def said(data: str) -> list[str]:
    with pytest.raises(PolicyError) as refused:
        load_policy("x", data.encode())
    return [str(problem) for problem in refused.value.problems]


def test_a_credential_named_like_a_key_is_still_a_credential() -> None:
    """What may stand in it follows from its place, not from its name."""
    text = "version: 1\nowner: x\ncredentials:\n  path:\n    hostz: []\n"
    assert '5:5: error: unknown key "hostz"; write "hosts"' in said(text)


def test_every_problem_of_a_file_is_told_at_once() -> None:
    """Nobody wants to mend a file one error at a time."""
    text = "version: 1\nrules:\n  - name: a\n    hosts: [A.org]\n    ports: ['x']\n    tunnel: 1\n  - {}\n"
    assert len(said(text)) == 6


def test_a_value_is_cut_short() -> None:
    """A pasted document does not fill the terminal."""
    assert all(len(line) < 200 for line in said(f"version: {'9' * 300}\nowner: x\n"))


def test_the_models_are_known_by_every_key_that_leads_to_one() -> None:
    """So that each unknown key gets the right suggestion."""
    for key, model in POLICY_PARTS.items():
        assert model.model_fields, key
