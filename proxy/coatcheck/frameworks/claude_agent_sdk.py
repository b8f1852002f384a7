"""The deprecated name of `coatcheck.client.frameworks.claude_agent_sdk`."""

import warnings

from coatcheck.client.frameworks.claude_agent_sdk import command_file as command_file

warnings.warn(
    f"{__name__} is deprecated: import coatcheck.client.frameworks.claude_agent_sdk",
    DeprecationWarning,
    stacklevel=2,
)
