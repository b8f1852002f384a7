"""`python -m demo` is `coatcheck demo`."""

import sys

from demo.main import DemoError, main

try:
    sys.exit(main(sys.argv[1:]))
except DemoError as error:
    sys.exit(f"error: {error}\nhint: {error.hint}")
