"""The guest's agent, compiled once for all tests."""

from pathlib import Path

import pytest

from coatcheck.images.guest_programs import agent


@pytest.fixture(scope="session")
def agent_program(pytestconfig: pytest.Config) -> Path:
    """The real agent, as a user gets it. Kept from run to run, by the hash of its source."""
    return agent(pytestconfig.cache.mkdir("guest") / "programs")
