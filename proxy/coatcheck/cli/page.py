"""`coatcheck page`: a link that logs a person in on the web page."""

from typing import Annotated

import typer

from coatcheck.cli.control import JsonOption, SocketOption, client_for, emit_json


def page(
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the link in this machine's browser.")
    ] = False,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a single-use login link to the web page.

    The page shows live sessions, verdicts, alarms and approvals.

    Example: coatcheck page
    """
    link = client_for(socket).page_link()
    if as_json:
        emit_json(link)
    else:
        typer.echo(link["url"])
        typer.echo(
            f"it logs you in once, within {link['expires_in']:.0f} s; the page is {link['page']}", err=True
        )
    if open_browser:
        typer.launch(link["url"])
