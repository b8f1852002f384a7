"""Samples are found beside their policy, and show which rules they cover."""

from pathlib import Path

import pytest

from coatcheck.policy import PolicyError
from coatcheck.policy.samples.files import samples_beside, try_path

POLICY = """\
version: 1
owner: tests
rules:
  - {name: read, hosts: [a.example], methods: [GET]}
  - {name: write, hosts: [a.example], methods: [POST]}
  - {name: pinned, hosts: [b.example], tunnel: true, max_request: 1MiB}
"""
READ = 'samples: [{request: "GET https://a.example/", rule: read}]\n'
WRITE = 'samples: [{request: "POST https://a.example/", rule: write}]\n'
DELETE = 'samples: [{request: "DELETE https://a.example/", reason: method_not_allowed}]\n'


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A policy with a place for its samples."""
    file = tmp_path / "team.yaml"
    file.write_text(POLICY)
    (tmp_path / "samples/team").mkdir(parents=True)
    return file


def put(policy: Path, name: str, text: str) -> None:
    (policy.parent / "samples" / name).write_text(text)


def test_samples_stand_in_one_file_and_in_files_by_their_answer(policy: Path) -> None:
    """All of them count, and each remembers its own file."""
    put(policy, "team.yaml", READ.replace("rule:", "expect: allow, rule:"))
    put(policy, "team/allowed_writes.yaml", WRITE)
    put(policy, "team/refused_deletes.yaml", DELETE)
    (test,) = try_path(policy)
    assert test.ok and not test.uncovered
    assert [file.name for file, _ in test.trials] == [
        "team.yaml",
        "allowed_writes.yaml",
        "refused_deletes.yaml",
    ]


def test_a_rule_is_covered_by_a_sample_that_it_must_allow(policy: Path) -> None:
    """One that fails shows nothing; of a tunnel there can be none."""
    put(policy, "team/allowed_reads.yaml", READ)
    (test,) = try_path(policy)
    assert (test.ok, test.uncovered, test.rules) == (True, ("write",), ("read", "write"))
    put(policy, "team/allowed_writes.yaml", WRITE.replace("rule: write", "rule: read"))
    (test,) = try_path(policy)
    assert (test.ok, test.uncovered) == (False, ("write",))
    assert test.as_json()["uncovered"] == ["write"] and test.as_json()["failures"]


def test_without_samples_nothing_is_tested(policy: Path) -> None:
    """An empty directory is as good as none."""
    (test,) = try_path(policy)
    assert not test.ok and samples_beside(policy) == []
    (policy.parent / "samples/team").rmdir()
    assert samples_beside(policy) is None


def test_a_file_that_does_not_say_what_it_expects_is_refused(policy: Path) -> None:
    """It would be passed over otherwise, and look like a test."""
    put(policy, "team/writes.yaml", WRITE)
    with pytest.raises(PolicyError, match=r"writes\.yaml:1:1: error: the file name does not say"):
        samples_beside(policy)


def test_a_mistake_in_samples_names_its_file(policy: Path) -> None:
    """The policy's own line numbers would mislead."""
    put(policy, "team/refused_x.yaml", READ)
    with pytest.raises(PolicyError, match=r"refused_x\.yaml:1:11: error: the sample's answer"):
        list(try_path(policy))
