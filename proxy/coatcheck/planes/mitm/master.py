"""mitmproxy's Master and the one of its addons that the daemon needs, without the thirty others.

`mitmproxy.addons` imports all of them as soon as one is imported: a web application with its framework, LDAP,
a starter of browsers. That is a third of a second of each start, 13 MiB, and code that has no business in a
process which holds secrets. mitmdump, whose addons they are, has imported them before it loads one of ours.
"""

import sys
from importlib.util import find_spec, module_from_spec


def _leave_out_what_it_imports(package: str) -> None:
    """Make the modules of `package` importable without running the package's own code."""
    if package not in sys.modules:
        spec = find_spec(package)
        if spec is None:
            raise ImportError(f"{package} is missing", name=package)
        sys.modules[package] = module_from_spec(spec)


_leave_out_what_it_imports("mitmproxy.addons")

from mitmproxy.addons.proxyserver import Proxyserver  # noqa: E402  # must follow the call above
from mitmproxy.master import Master  # noqa: E402

__all__ = ["Master", "Proxyserver"]
