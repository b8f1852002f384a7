"""The models are strict, and the committed schema is the one that they give."""

import json
from pathlib import Path

import jsonschema_rs
import pytest
from pydantic import ValidationError

from coatcheck.policyfile.models import Document, json_schema
from coatcheck.policyfile.reading import read

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


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


def test_the_schema_explains_every_key() -> None:
    """What an editor shows beside a key is not its type alone."""
    schema = json_schema()
    shapes = {"a policy": schema, **schema["$defs"]}
    silent = {
        f"{name}.{key}"
        for name, shape in shapes.items()
        for key, field in shape.get("properties", {}).items()
        if len(field.get("description", "")) < 10
    }
    assert silent == set()


@pytest.mark.parametrize(
    "file",
    [
        ROOT / "policies" / "default.yaml",
        *(ROOT / "policies" / "services").glob("*.yaml"),
        *HERE.glob("working_*.yaml"),
    ],
    ids=lambda file: file.stem,
)
def test_an_editor_finds_nothing_wrong_with_a_working_file(file: Path) -> None:
    """The schema is never stricter than the loader."""
    assert jsonschema_rs.is_valid(json_schema(), read(file.read_bytes()).data)


@pytest.mark.parametrize(
    "name", ["unknown_key", "unknown_inject_key", "empty_lists", "missing_owner", "other_version", "ports"]
)
def test_an_editor_marks_what_a_schema_can_say(name: str) -> None:
    """Keys, empty lists, versions, ranges; the rest is `coatcheck policy check`."""
    data = read((HERE / f"busted_{name}.yaml").read_bytes()).data
    assert not jsonschema_rs.is_valid(json_schema(), data)


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
        document.owner = "y"  # type: ignore[misc]
