"""What editors complete and explain: the JSON Schemas of policy files and of their samples.

They are the models' own, with three changes for people who type: nothing is suggested that would be refused
(`null`, an empty list), words of a closed set say what they mean, and what is usually written together is one
snippet. Other readers of JSON Schema skip `defaultSnippets` and `enumDescriptions`, as its standard wants it.
"""

from collections.abc import Mapping
from typing import Any, Final

from coatcheck.decision.denial import EXPLANATIONS as REASONS
from coatcheck.decision.denial import Reason
from coatcheck.injectors import WAYS
from coatcheck.policy.file.codes import EXPLANATIONS as FINDINGS
from coatcheck.policy.file.codes import Code
from coatcheck.policy.file.models import Document
from coatcheck.policy.samples.samples import SampleFile

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_CREDENTIAL = {
    "secret": "${2:vault:secret/github#token}",
    "hosts": ["${3:api.github.com}"],
    "inject": {"header": "${4:Authorization}", "value": "${5:Bearer {secret\\}}"},
    "env": "${6:GITHUB_TOKEN}",
}
_RULE = {
    "name": "${1:read issues}",
    "hosts": ["${2:api.github.com}"],
    "methods": ["${3:GET}"],
    "paths": ["${4:/repos/acme/website/issues}"],
    "credentials": ["${5:github}"],
    "limits": {"requests": "${6:60/minute}", "per": "session"},
}
SNIPPETS: Final[Mapping[str, tuple[dict[str, Any], ...]]] = {
    "Document": (
        {
            "label": "policy for one API",
            "description": "An owner, one credential, one rule.",
            "body": {
                "version": 1,
                "owner": "${1:platform-security}",
                "credentials": {
                    "${2:github}": {
                        "secret": "${3:vault:secret/github#token}",
                        "hosts": ["${4:api.github.com}"],
                        "inject": {"header": "${5:Authorization}", "value": "${6:Bearer {secret\\}}"},
                        "env": "${7:GITHUB_TOKEN}",
                    }
                },
                "rules": [
                    {
                        "name": "${8:read issues}",
                        "hosts": ["${4:api.github.com}"],
                        "methods": ["${9:GET}"],
                        "paths": ["${10:/repos/acme/website/issues}"],
                        "credentials": ["${2:github}"],
                        "limits": {"requests": "${11:60/minute}", "per": "session"},
                    }
                ],
            },
        },
    ),
    "Document.credentials": (
        {
            "label": "credential",
            "description": "The secret, the hosts it may go to, and its place in a request.",
            "body": {"${1:github}": _CREDENTIAL},
        },
    ),
    "RuleSpec": (
        {
            "label": "rule with a credential",
            "description": "Exact host, method and path, with a limit.",
            "body": _RULE,
        },
        {
            "label": "rule to read without a credential",
            "description": "GET and HEAD, without any secret.",
            "body": {
                "name": "${1:read the documentation}",
                "hosts": ["${2:docs.example.org}"],
                "methods": ["GET", "HEAD"],
            },
        },
    ),
    "InjectSpec": tuple(snippet for way in WAYS.values() for snippet in way.snippets),
    "LimitsSpec": (
        {
            "label": "so many requests a minute",
            "description": "For each session.",
            "body": {"requests": "${1:60/minute}", "burst": "${2:10}", "per": "session"},
        },
    ),
    "AcceptedSpec": (
        {
            "label": "accept a finding for a while",
            "description": "A finding that is accepted for a reason, until a last day.",
            "body": {
                "finding": "${1:no-limits}",
                "rule": "${2:read issues}",
                "reason": "${3:why}",
                "until": "${4:2027-03-31}",
            },
        },
    ),
    "SampleFile": (
        {
            "label": "samples of a policy",
            "description": "A request that must be allowed, and one that must be refused.",
            "body": {
                "samples": [
                    {
                        "request": "${1:GET https://api.github.com/repos/acme/website/issues}",
                        "expect": "allow",
                        "rule": "${2:read issues}",
                        "credentials": ["${3:github}"],
                    },
                    {
                        "request": "${4:DELETE https://api.github.com/repos/acme/website}",
                        "expect": "deny",
                        "reason": "${5:method_not_allowed}",
                    },
                ]
            },
        },
    ),
    "Sample": (
        {
            "label": "a request that must be allowed",
            "description": "By this rule, with this credential.",
            "body": {
                "request": "${1:GET https://api.github.com/repos/acme/website/issues}",
                "expect": "allow",
                "rule": "${2:read issues}",
                "credentials": ["${3:github}"],
            },
        },
        {
            "label": "a request that must be refused",
            "description": "For this reason.",
            "body": {
                "request": "${1:DELETE https://api.github.com/repos/acme/website}",
                "expect": "deny",
                "reason": "${2:method_not_allowed}",
            },
        },
    ),
}
"""By the name of a model, or of a model's key. `$` and `}` are written as editors' snippets want them."""

TITLES: Final[Mapping[str, str]] = {
    "CredentialSpec": "credential",
    "RuleSpec": "rule",
    "InjectSpec": "place of the secret",
    "LimitsSpec": "limit",
    "AcceptedSpec": "accepted finding",
    "Sample": "sample",
}
"""What an editor writes above an explanation, and beside the snippet of the keys that are needed."""


def policy_schema() -> dict[str, Any]:
    """The JSON Schema of a policy file; `coatcheck policy check` knows more than it can say."""
    return _for_editors("Document", "Coatcheck policy", Document.model_json_schema())


def samples_schema() -> dict[str, Any]:
    """The JSON Schema of a file of samples."""
    return _for_editors("SampleFile", "Samples of a Coatcheck policy", SampleFile.model_json_schema())


def _for_editors(name: str, title: str, schema: dict[str, Any]) -> dict[str, Any]:
    definitions = schema.get("$defs", {})
    for inner, definition in definitions.items():
        definitions[inner] = _shape(inner, definition)
    return {"$schema": DIALECT, **_shape(name, schema), "title": title}


def _shape(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    schema = dict(schema)
    schema.pop("title", None)
    if name in TITLES:
        schema["title"] = TITLES[name]
    if "properties" in schema:
        keys = {key: _key(name, key, value) for key, value in schema["properties"].items()}
        schema["properties"] = keys
    return _explained(name, schema)


def _key(model: str, key: str, schema: dict[str, Any]) -> dict[str, Any]:
    # An editor types defaults: `null`, `[]` and numbers of bytes are refused, and the rest says nothing.
    schema = {word: value for word, value in schema.items() if word not in {"title", "default"}}
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) == 1:
        del schema["anyOf"]
        schema = kinds[0] | schema
    elif kinds:
        schema["anyOf"] = kinds
    return _explained(f"{model}.{key}", schema)


def _explained(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    meant = [_meaning(word) for word in schema.get("enum", ())]
    if meant and all(meant):
        schema["enumDescriptions"] = meant
    if name in SNIPPETS:
        schema["defaultSnippets"] = list(SNIPPETS[name])
    return schema


def _meaning(word: str) -> str:
    if word in set(Reason):
        return REASONS[Reason(word)].message
    return FINDINGS[Code(word)].title if word in set(Code) else ""
