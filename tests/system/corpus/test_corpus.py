"""Every case of the corpus, as data, against a real daemon in a world of its own."""

from pathlib import Path

import pytest

from tests.corpus.child import results
from tests.corpus.schema import Run, classes, runs

LEAST = 250
"""Cases that differ in the check that they exercise, or in the way that they reach it."""

pytestmark = pytest.mark.needs_debian("ip", "qemu-system-x86_64", "bwrap")


@pytest.fixture(scope="module")
def said(all_output: Path) -> dict[str, list[str]]:
    return results(all_output / "corpus")


@pytest.mark.parametrize("run", [pytest.param(each, id=each.id) for each in runs()])
def test_case(run: Run, said: dict[str, list[str]]) -> None:
    """What the case expects is what the origin, the sandbox and the audit log saw."""
    assert said[run.id] == []


def test_there_are_at_least_as_many_cases_as_promised() -> None:
    """Of different checks, or of different ways to reach one; parameters of a case are not counted."""
    assert sum(case.check is not None for file in classes().values() for case in file.cases) >= LEAST
