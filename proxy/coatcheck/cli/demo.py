"""`coatcheck demo`."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from coatcheck.cli.errors import CommandError

CHECKOUT = Path(__file__).parents[3]
"""The repository, where this package is installed from one."""


def demo(
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments for the demo.", show_default=False)
    ] = None,
) -> None:
    """Run the demo: a sandbox without secrets, and attacks from it.

    Real clients, six attacks and their refusals, a client that knows of no proxy, and a real agent program
    inside a microVM that is inspected from the host.

    The demo is part of the repository, not of the installed package.

    Example: coatcheck demo
    """
    if not (CHECKOUT / "demo" / "__main__.py").is_file():
        raise CommandError(
            "the demo is not part of the installed package",
            "clone the Coatcheck repository and run `make demo` there",
        )
    os.chdir(CHECKOUT)  # `-m` looks there first
    os.execv(sys.executable, [sys.executable, "-m", "demo", *(arguments or ())])  # noqa: S606 - no shell is wanted
