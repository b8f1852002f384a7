"""The models are strict, and the committed schema is the one that they give."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from coatcheck.policyfile.models import Document, json_schema

ROOT = Path(__file__).parents[2]


def test_the_committed_schema_is_current() -> None:
    """Editors read policies/schema.json; `coatcheck policy schema` prints the same."""
    assert json.loads((ROOT / "policies" / "schema.json").read_text()) == json_schema()


def test_the_schema_names_every_key_and_forbids_others() -> None:
    """An editor completes keys and marks unknown ones."""
    schema = json_schema()
    credential, rule = schema["$defs"]["CredentialSpec"], schema["$defs"]["RuleSpec"]
    assert {"secret", "hosts", "inject", "env", "handle"} <= credential["properties"].keys()
    assert {"name", "hosts", "methods", "limits"} <= rule["properties"].keys()
    assert not credential["additionalProperties"] and not rule["additionalProperties"]


def test_nothing_is_converted() -> None:
    """A number is no text, a text no number, a 1 no yes."""
    for wrong in (
        {"version": "1", "owner": "x"},
        {"version": 1, "owner": 5},
        {"version": 1, "owner": "x", "rules": [{"name": "a", "hosts": ["a.org"], "websocket": 1}]},
    ):
        with pytest.raises(ValidationError):
            Document.model_validate(wrong)
    document = Document.model_validate({"version": 1, "owner": "x"})
    with pytest.raises(ValidationError):
        document.owner = "y"
