"""The same data, for the pure core alone: what it says of a request is what every plane must say."""

import pytest

from tests.corpus import core
from tests.corpus.schema import Run, runs

RUNS = [each for each in runs() if core.has_part(each)]


@pytest.mark.parametrize("run", [pytest.param(each, id=each.id) for each in RUNS])
def test_case(run: Run) -> None:
    """The outcome and the reason, without a byte of I/O."""
    assert core.wrong(run) == []
