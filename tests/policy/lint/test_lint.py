"""The linter as a whole: every code, its explanation, its place; and silence about what is right."""

import re
from datetime import date
from pathlib import Path

import pytest

from coatcheck.policy.file.codes import EXPLANATIONS, Code
from coatcheck.policy.lint.lint import Linted, lint
from coatcheck.policy.samples.samples import Sample, read_samples
from tests.policy.file.test_loading import BUSTED, POLICIES

TODAY = date(2026, 11, 21)
CORPUS = POLICIES.parent / "tests/corpus/policies"


def linted(path: Path, samples: list[Sample] | None = None) -> list[Linted]:
    return lint(path.stem, path.read_bytes(), TODAY, samples)[1]


@pytest.mark.parametrize("file", sorted(POLICIES.glob("*.yaml")), ids=lambda file: file.stem)
def test_what_we_ship_has_nothing_to_look_at(file: Path) -> None:
    """With its samples, each of which it needs."""
    samples = read_samples((POLICIES / "samples" / file.name).read_bytes())
    assert linted(file, samples) == []


EXPECTED = {
    "answers": {"compression": 1, "no-limits": 7, "unsearched": 1},
    "deputies": {"no-limits": 3},
    "empty": {},
    "framing": {"no-limits": 3},
    "house": {"no-limits": 3, "plain-http": 1},
    "limits": {"no-limits": 2},
    "literal": {"plain-http": 2},
    "paths": {"no-limits": 3},
    "pinned": {"tunnel": 1},
    "places": {"no-limits": 15, "always-refused": 2, "plain-http": 1},
    "plain": {"plain-http": 1},
    "ports": {"no-limits": 3, "plain-http": 1},
    "vendor": {"no-limits": 4, "plain-http": 1},
    "wild": {"no-limits": 1},
}
"""Read one by one: each is so. (Where a credential's methods and paths refuse what its rule names, cases of
the corpus ask for just that.) Besides, none of them has samples."""


@pytest.mark.parametrize("stem", EXPECTED)
def test_the_corpus_s_policies_show_no_false_finding(stem: str) -> None:
    """Written for other tests, by people who did not think of the linter."""
    found = [each.code.value for each in linted(CORPUS / f"{stem}.yaml") if each.code is not Code.NO_SAMPLE]
    assert {code: found.count(code) for code in found} == EXPECTED[stem]


@pytest.mark.parametrize("file", BUSTED, ids=lambda file: file.stem)
def test_what_does_not_load_has_one_code(file: Path) -> None:
    """Its errors are told as ever, and no other finding distracts from them."""
    found = linted(file)
    assert {each.code for each in found} == {Code.NOT_LOADED}
    assert all(each.problem.line > 0 and each.problem.instead for each in found)


def test_every_code_is_explained() -> None:
    """Why it matters and what to do, for people who meet it in a pull request."""
    assert set(EXPLANATIONS) == set(Code)
    for said in EXPLANATIONS.values():
        assert said.why.endswith(".") and said.remedy.endswith(".") and not said.title.endswith(".")


def test_every_code_is_in_the_handbook() -> None:
    """In the order in which the code lists them."""
    rows = re.findall(r"(?m)^\| `([a-z-]+)` \|", (POLICIES.parent / "docs/security-team.md").read_text())
    assert [row for row in rows if row in set(Code)] == [code.value for code in Code]


def test_every_finding_has_its_place_and_what_to_write() -> None:
    """On the file that has every key, in the order of its lines."""
    file = Path(__file__).parents[1] / "file" / "working_everything.yaml"
    found, lines = linted(file), file.read_text().splitlines()
    assert [(each.code.value, lines[each.problem.line - 1].strip()) for each in found] == [
        ("bearer-origin", "origins: [socket, mtls, bearer]"),
        ("no-sample", "rules:"),
        ("unsearched", "scrub: {off: its answers are public files}"),
        ("no-limits", "- name: git"),
        ("compression", "compression: true"),
        ("plain-http", "plain_http: true"),
        ("no-limits", "- name: buckets"),
        ("wildcard-public-suffix", 'hosts: ["*.s3.amazonaws.com"]'),
        ("tunnel", "tunnel: true"),
        ("rule-never-reached", "- name: never reached"),
    ]
    assert all(each.problem.instead for each in found)


POLICY = b"""version: 1
owner: security
rules:
  - {name: read, hosts: [a.example], methods: [GET]}
  - {name: pinned, hosts: [b.example], tunnel: true, max_request: 1MiB}
"""


def test_a_rule_without_an_allowed_sample_is_found() -> None:
    """In a tunnel no request is seen; of the rest, each rule needs one, and the file one that is refused."""

    def missing(samples: str | None) -> list[str]:
        read = read_samples(f"samples: [{samples}]".encode()) if samples is not None else None
        found = lint("x", POLICY, TODAY, read)[1]
        return [each.problem.message for each in found if each.code is Code.NO_SAMPLE]

    allowed = '{request: "GET https://a.example/", expect: allow}'
    refused = '{request: "PUT https://a.example/", expect: deny, reason: method_not_allowed}'
    assert missing(None) == ["no samples: nothing shows what this policy must allow and refuse"]
    assert missing(f"{allowed}, {refused}") == []
    assert missing(refused) == ['no sample shows what "read" allows']
    fails = '{request: "PUT https://a.example/", expect: allow}'
    assert missing(f"{fails}, {refused}") == missing(refused), "it is refused, so it shows nothing at work"
    assert missing(allowed) == ["no sample shows what this policy refuses"]


def test_patterns_that_overlap_in_too_many_ways_end_in_a_finding() -> None:
    """Two to the power of thirty sets of paths would keep a pipeline busy for ever."""
    stars = ["/" + "/".join("x" if at == here else "*" for at in range(30)) for here in range(30)]
    text = f"version: 1\nowner: x\nrules: [{{name: a, hosts: [a.example], methods: [GET], paths: {stars}}}]\n"
    found = lint("x", text.encode(), TODAY, [])[1]
    assert any("overlap in more than" in each.problem.message for each in found)
