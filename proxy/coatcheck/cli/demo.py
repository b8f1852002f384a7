"""`coatcheck demo`."""

from typing import Annotated

import typer


def demo(
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Passed on to the demo.", show_default=False)
    ] = None,
) -> None:
    """The main job on real input, in a sandbox without secrets; six attacks and their refusals; a client that
    knows of no proxy; a real agent program inside a microVM, inspected from the host.

    Example: coatcheck demo
    """
    from demo.main import main

    raise typer.Exit(main(arguments or []))
