"""OCSF's own schema, as far as our events need it: what an event says that it does not know, or lacks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCHEMA: dict[str, Any] = json.loads((Path(__file__).parent / "ocsf_1_4.json").read_text())
"""Classes and objects with their attributes, out of the schema's repository: `source` says which commit."""
_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "number": (int, float),
    "json": object,
}


def wrong(event: dict[str, Any]) -> list[str]:
    """All that a consumer with the schema would object to; empty when it is an event of its class."""
    shape = SCHEMA["classes"].get(str(event["class_uid"]))
    if shape is None:
        return [f"class {event['class_uid']} is not in the fixture"]
    return list(_wrong(event, shape, "", frozenset(event["metadata"]["profiles"])))


def _wrong(
    value: dict[str, Any], shape: dict[str, Any], where: str, profiles: frozenset[str]
) -> Iterator[str]:
    known = {
        name: attribute
        for name, attribute in shape["attributes"].items()
        if attribute.get("profile") is None or attribute["profile"] in profiles
    }
    for name, attribute in known.items():
        if attribute.get("required") and name not in value:
            yield f"{where}{name} is missing"
    some = shape.get("at_least_one", [])
    if some and not value.keys() & set(some):
        yield f"{where or 'the event '}has none of {', '.join(some)}"
    for name, given in value.items():
        if name not in known:
            yield f"{where}{name} is not known"
        else:
            yield from _attribute(given, known[name], f"{where}{name}", profiles)


def _attribute(given: Any, attribute: dict[str, Any], where: str, profiles: frozenset[str]) -> Iterator[str]:
    of_type = attribute["type"]
    if isinstance(given, list) != attribute.get("array", False) and of_type != "json":
        yield f"{where} is a list, or should be"
    for each in given if isinstance(given, list) else [given]:
        if of_type in SCHEMA["objects"]:
            yield from _wrong(each, SCHEMA["objects"][of_type], f"{where}.", profiles)
        elif of_type not in _TYPES:
            if of_type != "object":  # any
                yield f"{where} is of type {of_type}, which is not in the fixture"
        elif not isinstance(each, _TYPES[of_type]) or (of_type == "integer" and isinstance(each, bool)):
            yield f"{where} is no {of_type}"
        elif "enum" in attribute and each not in attribute["enum"]:
            yield f"{where} cannot be {each}"
