"""`coatcheck demo`."""

from typing import Annotated

import typer


def demo(
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Passed on to the demo.", show_default=False)
    ] = None,
) -> None:
    """The main job on real input, in a sandbox without secrets; then six attacks and their refusals.

    Example: coatcheck demo
    """
    from coatcheck.demo.main import main

    raise typer.Exit(main(arguments or []))
