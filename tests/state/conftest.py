"""A state on disk with a clock that the test turns."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coatcheck.state import State
from tests.state.house import House


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path / "sessions")
    yield house
    for state in house.opened:
        state.close()


@pytest.fixture
def state(house: House) -> State:
    return house.open()
