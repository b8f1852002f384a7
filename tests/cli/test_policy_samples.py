"""`coatcheck policy test` as a person sees it."""

from pathlib import Path

from tests.cli.transcript import coatcheck


def test_the_samples_pass(policies: Path) -> None:
    """The samples beside a policy are found by its name."""
    said = coatcheck("policy", "test", policies, cwd=policies.parent)
    assert said.code == 0, said.out
    count = (policies / "samples/default.yaml").read_text().count("- request:") + (
        policies / "samples/default.yaml"
    ).read_text().count("- name:")
    assert said.out == f"{policies}/default.yaml: {count} of {count} samples as expected\n"


def test_a_sample_that_is_answered_otherwise_fails(policies: Path) -> None:
    """It says which, what was expected and what came."""
    samples = policies / "samples/default.yaml"
    samples.write_text("samples:\n  - request: GET https://evil.example/\n    expect: allow\n")
    said = coatcheck("policy", "test", policies, cwd=policies.parent)
    assert said.code == 1
    assert said.out.splitlines() == [
        f"{policies}/default.yaml: GET https://evil.example/: expected allow, got deny host_not_allowed",
        f"{policies}/default.yaml: 0 of 1 samples as expected",
    ]


def test_a_policy_without_samples_is_not_tested(policies: Path) -> None:
    """Silence would look like success."""
    (policies / "samples/default.yaml").unlink()
    said = coatcheck("policy", "test", policies, cwd=policies.parent)
    assert said.code == 1
    assert said.out == f"{policies}/default.yaml: no samples at {policies}/samples/default.yaml\n"
