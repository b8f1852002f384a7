"""pydantic's errors come out in an editor's words; the busted_*.yaml files hold one of each."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from coatcheck.policy import PolicyError, load_policy
from coatcheck.policy.file.validation import POLICY_PARTS
from coatcheck.policy.samples.samples import read_samples


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


WHOLE: dict[str, Any] = {
    "version": 1,
    "owner": "security",
    "credentials": {
        "k": {
            "secret": "vault:a/b#c",
            "hosts": ["a.example"],
            "inject": {"header": "X-Key"},
            "also": [{"basic": {"username": "u"}}],
            "shape": {"prefix": "sk-"},
            "scrub": {"off": "it is short"},
        },
        "body": {"secret": "vault:a/b#c", "hosts": ["b.example"], "inject": {"body": {"field": "token"}}},
        "path": {"secret": "vault:a/b#c", "hosts": ["c.example"], "inject": {"path": {"prefix": "bot"}}},
        "aws": {"secret": "vault:a/b#c", "hosts": ["d.example"], "inject": {"sigv4": {"services": ["s3"]}}},
    },
    "rules": [
        {
            "name": "r",
            "hosts": ["a.example", "b.example", "c.example", "d.example"],
            "methods": ["GET"],
            "credentials": ["k", "body", "path", "aws"],
            "limits": [{"requests": "60/minute"}],
            "ask": {"remember": "15m"},
        }
    ],
    "filesystem": {"allow_write": ["/home/agent"]},
    "observe": {"reason": "to learn", "until": "2026-12-01"},
    "accepted": [{"finding": "no-limits", "reason": "it is small", "until": "2026-12-12"}],
}
SAMPLES: dict[str, Any] = {
    "samples": [
        {"request": "GET https://a.example/", "expect": "allow", "session": {"origin": "socket"}},
        {"request": "PUT https://a.example/", "expect": "deny", "reason": "method_not_allowed"},
    ]
}
ODD: tuple[Any, ...] = (None, 1, "x", [], [{}], {"a": 1})


def spoiled(whole: Any) -> Iterator[str]:
    """`whole` with one thing wrong: at each place an odd value, an unknown key, or a key less."""

    def at(path: tuple[Any, ...], node: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
        yield path, node
        for key, inner in (
            node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        ):
            yield from at((*path, key), inner)

    for path, node in at((), whole):
        others = list(ODD)
        if isinstance(node, dict):
            others.append(node | {"unknown": 1})
            others += [{key: inner for key, inner in node.items() if key != gone} for gone in node]
        for other in others:
            root = {"": copy.deepcopy(whole)}
            place: Any = root
            for key in ("", *path)[:-1]:
                place = place[key]
            place[("", *path)[-1]] = other
            yield json.dumps(root[""])


@pytest.mark.parametrize(
    ("whole", "read"), [(WHOLE, lambda data: load_policy("x", data)), (SAMPLES, read_samples)]
)
def test_whatever_is_wrong_anywhere_is_told_with_its_place_and_what_to_write(whole: Any, read: Any) -> None:
    """An unknown key below `ask` ended in a KeyError: a daemon without words at its start."""
    read(json.dumps(whole).encode())
    told = 0
    for text in spoiled(whole):
        try:
            read(text.encode())
        except PolicyError as refused:
            told += 1
            for problem in refused.problems:
                assert problem.line and problem.message and (problem.instead or problem.level == "warning"), (
                    text
                )
    assert told > 50, "odd values that pass"
