"""The deprecated name of `coatcheck.client.sandbox`.

May import: client.
"""

import warnings

from coatcheck.client.sandbox import ControlError as ControlError
from coatcheck.client.sandbox import Ended as Ended
from coatcheck.client.sandbox import Finished as Finished
from coatcheck.client.sandbox import Output as Output
from coatcheck.client.sandbox import Process as Process
from coatcheck.client.sandbox import Sandbox as Sandbox
from coatcheck.client.sandbox import SandboxClient as SandboxClient

warnings.warn(f"{__name__} is deprecated: import coatcheck.client.sandbox", DeprecationWarning, stacklevel=2)
