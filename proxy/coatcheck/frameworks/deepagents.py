"""The deprecated name of `coatcheck.client.frameworks.deepagents`."""

import warnings

from coatcheck.client.frameworks.deepagents import CoatcheckBackend as CoatcheckBackend

warnings.warn(
    f"{__name__} is deprecated: import coatcheck.client.frameworks.deepagents",
    DeprecationWarning,
    stacklevel=2,
)
