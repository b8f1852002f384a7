"""Programs that import the Python client by its old names go on, and are told the new ones."""

import importlib
import sys

import pytest

NAMES = {
    "coatcheck.sandbox_client": ("coatcheck.client.sandbox", "SandboxClient"),
    "coatcheck.sandbox_client.blocking": ("coatcheck.client.sandbox.blocking", "BlockingClient"),
    "coatcheck.frameworks.deepagents": ("coatcheck.client.frameworks.deepagents", "CoatcheckBackend"),
    "coatcheck.frameworks.claude_agent_sdk": (
        "coatcheck.client.frameworks.claude_agent_sdk",
        "command_file",
    ),
}


@pytest.mark.parametrize("old", NAMES)
def test_an_old_name_is_the_new_one(old: str) -> None:
    """The same class, and a warning that says where it is now."""
    new, name = NAMES[old]
    for known in [each for each in sys.modules if each.startswith(old)]:
        del sys.modules[known]
    with pytest.warns(DeprecationWarning, match=f"{old} is deprecated: import {new}"):
        module = importlib.import_module(old)
    assert getattr(module, name) is getattr(importlib.import_module(new), name)
