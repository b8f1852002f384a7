"""Policies of two files or directories, compared in meaning: what `coatcheck policy diff` prints."""

import os
from collections.abc import Mapping
from pathlib import Path

from coatcheck.decision.policy import Policy
from coatcheck.policy.checking import load_file
from coatcheck.policy.diff.change import Change
from coatcheck.policy.diff.difference import compare
from coatcheck.policy.file.problem import PolicyError, Problem


def compare_paths(old: Path, new: Path) -> list[Change]:
    """All changes, policy by policy. Raises PolicyError, TooComplex, OSError.

    Two files are one policy, whatever they are called; of two directories, files of one name are. The null
    device is no policy, as in git.
    """
    if old.is_dir() != new.is_dir() and os.devnull not in (str(old), str(new)):
        raise PolicyError([Problem(0, 0, "one is a file and one a directory", "name two of a kind")])
    if old.is_dir() or new.is_dir():
        before, after = _directory(old), _directory(new)
    else:
        named = new if str(new) != os.devnull else old
        before, after = _file(old, named.stem), _file(new, named.stem)
    return [
        change
        for name in sorted(before.keys() | after.keys())
        for change in compare(name, before.get(name), after.get(name))
    ]


def _directory(path: Path) -> Mapping[str, Policy]:
    if not path.is_dir():
        return {}
    return {file.stem: load_file(file) for file in sorted(path.glob("*.yaml"))}


def _file(path: Path, name: str) -> Mapping[str, Policy]:
    return {} if str(path) == os.devnull else {name: load_file(path)}
