"""`python -m coatcheck.planes.stock` prints the command line of the compatibility mode; `--path` the file."""

import sys

from coatcheck.planes.stock.options import command_line
from coatcheck.planes.stock.script import SCRIPT

if __name__ == "__main__":
    sys.stdout.write((str(SCRIPT) if "--path" in sys.argv[1:] else command_line(SCRIPT)) + "\n")
