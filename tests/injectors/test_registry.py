"""A file in injectors/ is enough for a new way to inject, and nothing else names one."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import coatcheck
from coatcheck.decision.injection import Injector
from coatcheck.injectors import WAYS, find_ways
from coatcheck.policy.file.models import InjectSpec

PACKAGE = Path(coatcheck.__file__).parent
HERE = Path(__file__).parent


def test_one_more_file_is_known_everywhere(tmp_path: Path) -> None:
    """Policy files, their schema, samples, linter and diff; the verdict, the request, doctor and a session's
    environment: on a copy of the package in which nothing but one file of injectors/ is new."""
    copy = tmp_path / "coatcheck"
    (copy / "injectors").mkdir(parents=True)
    for path in PACKAGE.iterdir():
        if path.name != "injectors":
            (copy / path.name).symlink_to(path)
    for path in (PACKAGE / "injectors").glob("*.py"):
        (copy / "injectors" / path.name).symlink_to(path)
    (copy / "injectors/coupon.py").write_bytes((HERE / "coupon.py").read_bytes())
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, HERE / "with_one_more.py"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "known everywhere\n"), done.stderr


def test_every_injector_is_a_way_that_policy_can_write() -> None:
    """And each says its own name; a file without a WAY would be one that nobody can use."""
    named = {kind.key for kind in Injector.__subclasses__() if kind.__module__.startswith("coatcheck.")}
    assert named == WAYS.keys() == InjectSpec.model_fields.keys() & WAYS.keys()
    assert {"header", "basic", "query", "path", "body", "sigv4", "hmac"} <= named


def test_no_two_ways_have_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy file could not say which is meant."""
    source = (PACKAGE / "injectors/query.py").read_text()
    (tmp_path / "twice_over").mkdir()
    for name in ("one", "other"):
        (tmp_path / f"twice_over/{name}.py").write_text(source)
    (tmp_path / "twice_over/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="other and one both have the key query"):
        find_ways("twice_over", [str(tmp_path / "twice_over")])


def test_nothing_outside_names_an_injector() -> None:
    """Neither its class nor its file: what one does is asked of `Injector`. In code, not in texts."""
    ours = [kind for kind in Injector.__subclasses__() if kind.__module__.startswith("coatcheck.")]
    classes, files = {kind.__name__ for kind in ours}, {kind.__module__ for kind in ours}
    assert len(ours) >= 7
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        if path.parent == PACKAGE / "injectors":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = {getattr(node, "id", None), getattr(node, "attr", None), getattr(node, "module", None)}
            names |= {each.name for each in getattr(node, "names", []) if isinstance(each, ast.alias)}
            if names & (classes | files):
                wrong.append(f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}")
    assert wrong == []
