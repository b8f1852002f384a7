"""The compatibility mode: `mitmdump -s FILE --set coatcheck_policy=…`, where FILE is this one.

`python -m coatcheck.planes.stock` prints the whole command line, `--path` only the file. The mode judges
requests as the daemon does, and refuses to start beside unsafe options. It injects secrets only with
`--set coatcheck_accept_reduced=true`, as a stock mitmdump cannot keep all promises: it prints which.
"""

from pathlib import Path

from coatcheck.planes.stock.addon import StockAddon

SCRIPT = Path(__file__).resolve()

addons = [StockAddon(SCRIPT)]
"""What mitmproxy looks for in a script."""
