"""`coatcheck approval …`: requests that wait for approval, and the answers."""

import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from coatcheck.cli.control import JsonOption, SocketOption, client_for, emit_json
from coatcheck.telemetry.redaction import printable

app = typer.Typer(
    name="approval",
    no_args_is_help=True,
    help="Requests that wait for an operator's approval.\n\nA rule with `ask` holds them until then.\n\n"
    "Example: coatcheck approval list --follow",
)

POLL_SECONDS = 1.0
"""Between two looks of `list --follow`: a person does not see less."""

ApprovalArgument = Annotated[str, typer.Argument(metavar="ID", help="Id from `coatcheck approval list`.")]
PersonOption = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="WHO",
        help="Person on whose behalf you answer; recorded in the audit log next to your name.",
    ),
]


@app.command("list")
def list_waiting(
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Keep running and show each new request until Ctrl-C.")
    ] = False,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the waiting requests, oldest first.

    Example: coatcheck approval list --follow
    """
    client = client_for(socket)
    waiting = client.approvals()
    if as_json:
        emit_json(waiting)
        return
    _show(waiting)
    if not waiting and not follow:
        typer.echo("nothing waits")
    seen = {each["id"] for each in waiting}
    while follow:
        time.sleep(POLL_SECONDS)
        waiting = client.approvals()
        _show([each for each in waiting if each["id"] not in seen])
        seen = {each["id"] for each in waiting}


@app.command()
def yes(
    approval: ApprovalArgument,
    remember: Annotated[
        bool,
        typer.Option(
            "--remember", help="Approve the same request again, for the time and scope that the rule sets."
        ),
    ] = False,
    person: PersonOption = None,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Approve a request.

    Example: coatcheck approval yes apr_0123456789abcdef
    """
    client = client_for(socket)

    def answer() -> dict[str, Any]:
        waiting = next((each for each in client.approvals() if each["id"] == approval), None)
        longest = waiting["remember_seconds"] if remember and waiting else 0.0
        return client.answer_approval(approval, "yes", remember_seconds=longest, person=person)

    _answered("yes", answer, as_json)


@app.command()
def no(
    approval: ApprovalArgument,
    person: PersonOption = None,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deny a request. The answer is not remembered: the same request asks again.

    Example: coatcheck approval no apr_0123456789abcdef
    """
    client = client_for(socket)
    _answered("no", lambda: client.answer_approval(approval, "no", person=person), as_json)


def _answered(word: str, answer: Callable[[], dict[str, Any]], as_json: bool) -> None:
    answered = answer()
    if as_json:
        emit_json(answered)
    else:
        typer.echo(f"{word}: {_line(answered['approval'])}")


def _show(waiting: list[dict[str, Any]]) -> None:
    for each in waiting:
        left = max(each["until"] - time.time(), 0)
        typer.echo(f"{each['id']}  {left:4.0f} s left  {_line(each)}")


def _line(each: dict[str, Any]) -> str:
    """What a sandbox chose is in it: nothing that moves a terminal's cursor may get through."""
    credentials = ",".join(each["credentials"]) or "no credential"
    also = f"  ALSO: {'; '.join(each['readings'])}" if each["readings"] else ""
    return printable(
        f"{each['tenant']}/{each['subject']} {each['method']} {each['destination']}{each['path']}"
        f"  ({each['rule']}; {credentials}){also}"
    )
