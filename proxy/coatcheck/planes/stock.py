"""The compatibility mode: `mitmdump -s FILE --set coatcheck_policy=…`, where FILE is this one.

`python -m coatcheck.planes.stock` prints the whole command line, `--path` only the file. The mode judges
requests as the daemon does, and refuses to start beside unsafe options. It injects secrets only with
`--set coatcheck_accept_reduced=true`, as a stock mitmdump cannot keep all promises: it prints which.
"""

import sys
from pathlib import Path

from coatcheck.planes.stock_addon import StockAddon
from coatcheck.planes.stock_options import command_line

SCRIPT = Path(__file__).resolve()

addons = [StockAddon(SCRIPT)]
"""What mitmproxy looks for in a script."""

if __name__ == "__main__":
    sys.stdout.write((str(SCRIPT) if "--path" in sys.argv[1:] else command_line(SCRIPT)) + "\n")
