"""The guest's agent, compiled once for all tests."""

from pathlib import Path

import pytest

from coatcheck.launcher.guest_programs import agent


@pytest.fixture(scope="session")
def agent_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real agent, as a user gets it."""
    return agent(tmp_path_factory.mktemp("guest") / "programs")
