"""`coatcheck policy test` as a person sees it."""

from pathlib import Path
from xml.etree.ElementTree import fromstring

from tests.cli.transcript import coatcheck

RULES = [
    "openai model calls",
    "openai model list",
    "anthropic model calls",
    "github api, read only",
    "git clone, fetch and push",
]


def test_the_samples_pass(policies: Path) -> None:
    """The samples beside a policy are found by its name."""
    said = coatcheck("policy", "test", policies, cwd=policies.parent)
    assert said.code == 0, said.out
    count = (policies / "samples/default.yaml").read_text().count("- request:") + (
        policies / "samples/default.yaml"
    ).read_text().count("- name:")
    assert (
        said.out
        == f"{policies}/default.yaml: {count} of {count} samples as expected, 5 of 5 rules shown at work\n"
    )


def test_a_sample_that_is_answered_otherwise_fails(policies: Path) -> None:
    """It says which, what was expected and what came."""
    samples = policies / "samples/default.yaml"
    samples.write_text("samples:\n  - request: GET https://evil.example/\n    expect: allow\n")
    said = coatcheck("policy", "test", policies, cwd=policies.parent)
    assert said.code == 1
    assert said.out.splitlines() == [
        f"{policies}/default.yaml: GET https://evil.example/: expected allow, got deny host_not_allowed",
        f"{policies}/default.yaml: 0 of 1 samples as expected, 0 of 5 rules shown at work",
        *(
            f'{policies}/default.yaml: no sample that must be allowed is decided by "{rule}"'
            for rule in RULES
        ),
    ]


def test_a_policy_without_samples_is_not_tested(policies: Path) -> None:
    """Silence would look like success."""
    (policies / "samples/default.yaml").unlink()
    said = coatcheck("policy", "test", policies, cwd=policies.parent)
    assert said.code == 1
    assert said.out == f"{policies}/default.yaml: no samples at {policies}/samples/default.yaml\n"


def test_a_gate_can_want_every_rule_shown_at_work(policies: Path) -> None:
    """And pipelines read JUnit; the exit code stays the same."""
    samples = policies / "samples/default.yaml"
    samples.write_text("samples:\n  - request: GET https://api.github.com/user\n    expect: allow\n")
    arguments = ("policy", "test", policies, "--junit")
    assert coatcheck(*arguments, "out.xml", cwd=policies.parent).code == 0
    root = fromstring((policies.parent / "out.xml").read_bytes())
    assert [case.get("name") for case in root.iter("testcase")] == ["GET https://api.github.com/user"]
    gated = coatcheck(*arguments, "-", "--coverage", cwd=policies.parent)
    assert gated.code == 1 and fromstring(gated.out.encode()).tag == "testsuites"
