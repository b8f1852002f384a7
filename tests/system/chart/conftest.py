"""One Helm for all tests of the chart: what it rendered once is not rendered again."""

from collections.abc import Iterator

import pytest

from tests.bao import bao
from tests.system.chart.helm import Helm, running_helm

__all__ = ["bao"]


@pytest.fixture(scope="session")
def helm() -> Iterator[Helm]:
    with running_helm() as running:
        yield running
