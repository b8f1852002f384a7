"""Files and directories are compared policy by policy."""

import os
from pathlib import Path

import pytest

from coatcheck.policy import PolicyError
from coatcheck.policy.diff.comparing import compare_paths

POLICY = "version: 1\nowner: x\nrules: [{name: a, hosts: [a.example], methods: [GET]}]\n"


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    """Two directories with one policy that is the same in both."""
    for side in ("old", "new"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "same.yaml").write_text(POLICY)
    return tmp_path / "old", tmp_path / "new"


def test_files_of_one_name_are_one_policy(sides: tuple[Path, Path]) -> None:
    """Those that came or went are new or gone; samples beside them are none."""
    old, new = sides
    assert compare_paths(old, new) == []
    (old / "went.yaml").write_text(POLICY)
    (new / "came.yaml").write_text(POLICY)
    (new / "samples").mkdir()
    (new / "samples/came.yaml").write_text("samples: []")
    found = {(change.policy, change.direction.value) for change in compare_paths(old, new)}
    assert found == {("came", "widens"), ("went", "narrows")}


def test_two_files_are_one_policy_whatever_they_are_called(sides: tuple[Path, Path]) -> None:
    """`git show main:policies/web.yaml > /tmp/x` has another name."""
    old, new = sides
    (new / "web.yaml").write_text(POLICY.replace("GET", "PUT"))
    assert {change.policy for change in compare_paths(old / "same.yaml", new / "web.yaml")} == {"web"}


def test_the_null_device_is_no_policy(sides: tuple[Path, Path]) -> None:
    """As git has it for files that came or went."""
    file, nothing = sides[0] / "same.yaml", Path(os.devnull)
    assert {change.direction.value for change in compare_paths(nothing, file)} == {"widens"}
    assert {change.policy for change in compare_paths(file, nothing)} == {"same"}
    assert {change.direction.value for change in compare_paths(sides[0], nothing)} == {"narrows"}


def test_what_cannot_be_compared_is_refused(sides: tuple[Path, Path]) -> None:
    """A broken policy does not look like one that denies all."""
    old, new = sides
    with pytest.raises(PolicyError, match="one is a file and one a directory"):
        compare_paths(old, new / "same.yaml")
    (new / "same.yaml").write_text("version: 1\n")
    with pytest.raises(PolicyError, match=r"same\.yaml:1:1: error: \"owner\" is missing"):
        compare_paths(old, new)
