"""What the faults share: an OpenBao that can be broken, and a place that is searched for secrets."""

from collections.abc import Iterator

import pytest

from tests.exhaustive.faults.own_bao import OwnBao, own_bao
from tests.system.e2e.conftest import place

__all__ = ["place"]


@pytest.fixture(scope="session")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnBao]:
    """One for all tests here. A test leaves it running and unsealed."""
    with own_bao(tmp_path_factory.mktemp("own-bao")) as running:
        yield running
