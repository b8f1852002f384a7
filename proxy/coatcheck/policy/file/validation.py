"""pydantic's errors in the words of somebody who edits the file."""

from collections.abc import Mapping

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from coatcheck.injectors import WAYS
from coatcheck.injectors.spelling import closest
from coatcheck.policy.file import models
from coatcheck.policy.file.problem import Location, Problem
from coatcheck.policy.file.reading import Source

POLICY_PARTS: Mapping[str, type[BaseModel]] = {
    "": models.Document,
    "credentials": models.CredentialSpec,
    "filesystem": models.FilesystemSpec,
    "inject": models.InjectSpec,
    "also": models.InjectSpec,
    "shape": models.ShapeSpec,
    "scrub": models.ScrubSpec,
    "limits": models.LimitsSpec,
    "rules": models.RuleSpec,
    "ask": models.AskSpec,
    "observe": models.ObserveSpec,
    "accepted": models.AcceptedSpec,
    **{key: part for way in WAYS.values() for key, part in way.parts.items()},
}
"""The models of a policy file by the key that leads to them."""
_EXAMPLES = {
    "version": "version: 1",
    "owner": "owner: platform-security",
    "secret": "secret: vault:secret/openai#api_key",
    "hosts": "hosts: [api.openai.com]",
    "inject": 'inject: {header: Authorization, value: "Bearer {secret}"}',
    "name": "name: what this rule is for",
    "off": "off: why answers need not be searched for it",
    "prefix": "prefix: sk-",
    "shape": "shape: {prefix: sk-ant-}",
    "scrub": 'scrub: {off: "why answers need not be searched for it"}',
    "limits": "limits: {requests: 60/minute}",
    "rules": "rules: [{name: …, hosts: […], methods: [GET]}]",
    "credentials": "credentials: {name: {secret: …, hosts: […], inject: {…}}}",
    "finding": "finding: plain-http",
    "reason": "reason: why it is accepted",
    "until": "until: 2027-03-31",
    "accepted": "accepted: [{finding: plain-http, rule: …, reason: …, until: 2027-03-31}]",
    "plain_http": f"plain_http: {models.IN_THE_CLEAR}",
    **{key: example for way in WAYS.values() for key, example in way.examples.items()},
}


def findings_of(
    error: ValidationError, source: Source, parts: Mapping[str, type[BaseModel]]
) -> list[Problem]:
    """Every error with its line and column and what to write instead.

    `parts` are the models of the file by the key that leads to them, the whole under "".
    """
    return [_problem(details, source, parts) for details in error.errors(include_url=False)]


def _problem(details: ErrorDetails, source: Source, parts: Mapping[str, type[BaseModel]]) -> Problem:
    # pydantic marks an error in a mapping's key by a last "[key]".
    is_key = details["loc"][-1:] == ("[key]",)
    location: Location = details["loc"][:-1] if is_key else details["loc"]
    last = str(location[-1]) if location else "the file"
    context = details.get("ctx", {})
    key, message, instead = is_key, details["msg"], ""
    match details["type"]:
        case "wrong":
            message, instead = context["message"], context["instead"]
        case "missing":
            message, instead = f'"{last}" is missing', f"add `{_EXAMPLES.get(last, last + ': …')}`"
            location = location[:-1]
        case "extra_forbidden":
            key = True
            message, instead = f'unknown key "{last}"', closest(last, _known(location[:-1], parts))
        case "too_short":
            message, instead = "the list is empty", f"list at least one, or remove {_named(location)}"
        case "model_type" | "dict_type":
            example = _EXAMPLES.get(_named(location), "key: value")
            message, instead = f"{_named(location)} needs keys and values", f"write `{example}`"
        case "list_type":
            message, instead = (
                f"{_named(location)} needs a list",
                f"write `{_as_list(last, details['input'])}`",
            )
        case "bool_type":
            message, instead = f"{last} is a yes or no", "write true or false"
        case "int_type":
            message = f"{_shown(details['input'])} is not a number that {_named(location)} can be"
            instead = "write a whole number without quotes"
        case "greater_than_equal" | "less_than_equal":
            bound = f"at least {context['ge']}" if "ge" in context else f"at most {context['le']}"
            message = f"{_shown(details['input'])} is not a number that {_named(location)} can be"
            instead = f"write a whole number of {bound}"
        case "literal_error":
            expected = context["expected"].replace("'", "")
            message, instead = f"{last} cannot be {_shown(details['input'])}", f"write {expected}"
    return Problem(*source.place(location, key), message, instead)


def _known(location: Location, parts: Mapping[str, type[BaseModel]]) -> list[str]:
    """The keys that the mapping at `location` may have."""
    key = _named(location) if location else ""
    if len(location) == 2 and location[0] == "credentials":
        key = "credentials"  # what stands there is the credential's own name
    return list(parts[key].model_fields)


def _named(location: Location) -> str:
    """The nearest key above `location`: indexes have no names."""
    return next((part for part in reversed(location) if isinstance(part, str)), "the file")


def _as_list(key: str, value: object) -> str:
    return _EXAMPLES.get(key, f"{key}: […]") if value is None else f"{key}: [{_shown(value)}]"


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else str(value)[:60]
