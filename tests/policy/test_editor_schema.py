"""What editors complete, explain and mark: the schemas of policies and of samples."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from coatcheck.decision.denial import EXPLANATIONS, Reason
from coatcheck.policy import check_policy
from coatcheck.policy.editor_schema import SNIPPETS, policy_schema, samples_schema
from coatcheck.policy.file.codes import Code
from coatcheck.policy.file.reading import read
from coatcheck.policy.samples.samples import read_samples

HERE = Path(__file__).parent / "file"
ROOT = HERE.parents[2]
SCHEMAS = {"schema.json": policy_schema(), "samples.schema.json": samples_schema()}
POLICIES = [ROOT / "policies" / "default.yaml", *(ROOT / "policies/services").glob("*.yaml")]


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_committed_schema_is_current(name: str) -> None:
    """Editors read policies/*schema.json; `coatcheck policy schema [--samples]` prints the same."""
    assert json.loads((ROOT / "policies" / name).read_text()) == SCHEMAS[name]


def test_the_schema_names_every_key_and_forbids_others() -> None:
    """An editor completes keys and marks unknown ones."""
    schema = policy_schema()
    credential, rule = schema["$defs"]["CredentialSpec"], schema["$defs"]["RuleSpec"]
    assert {"secret", "hosts", "inject", "env", "handle"} <= credential["properties"].keys()
    assert {"name", "hosts", "methods", "limits"} <= rule["properties"].keys()
    assert not credential["additionalProperties"] and not rule["additionalProperties"]


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schema_explains_every_key(name: str) -> None:
    """What an editor shows beside a key is not its type alone."""
    schema = SCHEMAS[name]
    shapes = {"a file": schema, **schema["$defs"]}
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
        *POLICIES,
        *HERE.glob("working_*.yaml"),
    ],
    ids=lambda file: file.stem,
)
def test_an_editor_finds_nothing_wrong_with_a_working_file(file: Path) -> None:
    """The schema is never stricter than the loader."""
    assert jsonschema_rs.is_valid(policy_schema(), read(file.read_bytes()).data)


@pytest.mark.parametrize(
    "name", ["unknown_key", "unknown_inject_key", "empty_lists", "missing_owner", "other_version", "ports"]
)
def test_an_editor_marks_what_a_schema_can_say(name: str) -> None:
    """Keys, empty lists, versions, ranges; the rest is `coatcheck policy check`."""
    data = read((HERE / f"busted_{name}.yaml").read_bytes()).data
    assert not jsonschema_rs.is_valid(policy_schema(), data)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda file: file.stem)
def test_an_editor_finds_nothing_wrong_with_working_samples(policy: Path) -> None:
    """Those that we ship."""
    data = read((policy.parent / "samples" / policy.name).read_bytes()).data
    assert jsonschema_rs.is_valid(samples_schema(), data)


def values(schema: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in it."""
    if isinstance(schema, dict):
        yield schema
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from values(inner)


@pytest.mark.parametrize("name", SCHEMAS)
def test_nothing_is_suggested_that_would_be_refused(name: str) -> None:
    """An editor types a default, or null, as soon as somebody chooses the key."""
    for shape in values({word: value for word, value in SCHEMAS[name].items() if word != "$schema"}):
        assert "default" not in shape
        assert shape.get("type") != "null"


def test_words_of_closed_sets_say_what_they_mean() -> None:
    """Beside each finding and each reason in the list."""
    codes = policy_schema()["$defs"]["FindingCode"]
    assert dict(zip(codes["enum"], codes["enumDescriptions"], strict=True)).keys() == set(Code)
    reasons = samples_schema()["$defs"]["Sample"]["properties"]["reason"]
    said = dict(zip(reasons["enum"], reasons["enumDescriptions"], strict=True))
    assert said == {reason.value: EXPLANATIONS[reason].message for reason in Reason}


def filled(value: Any) -> Any:
    """A snippet as it stands there when nobody changes its places."""
    if isinstance(value, dict):
        return {filled(key): filled(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner) for inner in value]
    if not isinstance(value, str):
        return value
    text = re.sub(r"\$\{\d+:((?:[^}\\]|\\.)*)\}", lambda place: place[1].replace("\\", ""), value)
    return int(text) if text.isdecimal() else text


def bodies(name: str) -> list[Any]:
    return [filled(snippet["body"]) for snippet in SNIPPETS[name]]


def test_the_snippet_of_a_policy_is_one_that_loads() -> None:
    """With a credential that its rule uses, and nothing in it that a reviewer should look at."""
    (policy,) = bodies("Document")
    assert not check_policy("snippet", json.dumps(policy).encode()).warnings
    (credential,) = bodies("Document.credentials")
    assert policy["credentials"] == credential
    assert bodies("RuleSpec")[0] == policy["rules"][0]


@pytest.mark.parametrize("name", ["RuleSpec", "InjectSpec", "LimitsSpec", "AcceptedSpec", "Sample"])
def test_every_other_snippet_fits_where_it_is_offered(name: str) -> None:
    """As the schema says itself."""
    schema = SCHEMAS["samples.schema.json" if name == "Sample" else "schema.json"]
    inner = {"$schema": schema["$schema"], "$defs": schema["$defs"], "$ref": f"#/$defs/{name}"}
    for body in bodies(name):
        jsonschema_rs.validate(inner, body)


def test_the_snippets_of_samples_are_samples() -> None:
    """As `coatcheck policy test` reads them; that of an empty file is both that a file's list offers."""
    (file,) = bodies("SampleFile")
    assert file == {"samples": bodies("Sample")}
    assert len(read_samples(json.dumps(file).encode())) == 2
