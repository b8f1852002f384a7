"""`coatcheck events`: what happens to sandboxes, as it happens."""

import json
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from coatcheck.cli.control import SocketOption, client_for

WAIT_SECONDS = 20


def events(
    after: Annotated[
        int | None, typer.Option(min=0, help="Event number to continue after. Default: only new events.")
    ] = None,
    sandbox: Annotated[str | None, typer.Option(help="Show only events of this sandbox.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the events so far and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document per line.")] = False,
    socket: SocketOption = None,
) -> None:
    """Follow the events of sandboxes until Ctrl-C.

    They are created, running, asleep, forked, and ended, with the reason.

    Example: coatcheck events --json
    """
    client = client_for(socket)
    while True:
        page = client.events(after, sandbox, 0 if once else WAIT_SECONDS)
        if page["missed"]:
            typer.echo("some events are not kept any more: see `coatcheck sandbox list --all`", err=True)
        for each in page["events"]:
            typer.echo(json.dumps(each) if as_json else _line(each))
        after = page["next"]
        if once and not page["events"]:
            return


def _line(event: dict[str, Any]) -> str:
    words = [f"{datetime.fromtimestamp(event['at'], UTC):%H:%M:%S}", str(event["number"])]
    words += [event["sandbox"] or "-", event["change"], f"{event['tenant']}/{event['subject']}"]
    return "  ".join([*words, *(event[name] for name in ("ending", "detail") if event[name])])
