"""Worlds of network namespaces, one for each module: making one takes a moment, and tests put rules away."""

from collections.abc import Iterator

import pytest

from tests.system.redirect.world import STAND_IN, World, world


@pytest.fixture(scope="module")
def made_world() -> Iterator[World]:
    with world(*STAND_IN) as made:
        yield made
