"""`python -m demo`."""

import sys

from demo.main import main
from demo.requirement import DemoError

try:
    sys.exit(main(sys.argv[1:]))
except DemoError as error:
    sys.exit(f"error: {error}\nhint: {error.hint}")
