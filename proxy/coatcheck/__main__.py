"""`python -m coatcheck` is the command."""

from coatcheck.cli import main

main()
