"""The guest's agent, as the launcher's tests have it."""

from tests.system.launcher.conftest import agent_program as agent_program
