"""The deprecated name of `coatcheck.client.sandbox.blocking`."""

import warnings

from coatcheck.client.sandbox.blocking import BlockingClient as BlockingClient
from coatcheck.client.sandbox.blocking import BlockingProcess as BlockingProcess
from coatcheck.client.sandbox.blocking import BlockingSandbox as BlockingSandbox

warnings.warn(
    f"{__name__} is deprecated: import coatcheck.client.sandbox.blocking", DeprecationWarning, stacklevel=2
)
