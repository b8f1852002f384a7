"""Each check switched off: then every case that names it must fail, or it exercises something else."""

from pathlib import Path

import pytest

from tests.corpus.child import results
from tests.corpus.schema import Run, checks, classes, runs

pytestmark = pytest.mark.needs_debian("ip", "qemu-system-x86_64", "bwrap")


@pytest.fixture(scope="module")
def said(all_output: Path) -> dict[str, list[str]]:
    return results(all_output / "corpus-without-checks", "--switch-off")


@pytest.mark.parametrize(
    "run", [pytest.param(each, id=each.id) for each in runs() if each.case.check is not None]
)
def test_case(run: Run, said: dict[str, list[str]]) -> None:
    """The case fails without its check."""
    assert said[run.id] == []


def test_every_check_is_exercised_and_every_case_names_one_that_is_there() -> None:
    """Neither a check without a case, nor a case whose check nobody described."""
    named = {case.check for file in classes().values() for case in file.cases} - {None}
    assert named == set(checks())
