"""`coatcheck sandbox list` and `show`."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from coatcheck.cli.control import JsonOption, SocketOption, client_for, emit_json
from coatcheck.cli.known_ids import sandbox_ids
from coatcheck.cli.sandbox_lifecycle import described
from coatcheck.cli.sandbox_scale import described as growth
from coatcheck.cli.table import table

SandboxArgument = Annotated[
    str, typer.Argument(metavar="SANDBOX", help="Sandbox id.", autocompletion=sandbox_ids)
]


def list_sandboxes(
    every: Annotated[bool, typer.Option("--all", help="Include sandboxes that have ended.")] = False,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """List sandboxes. `ls` and `ps` are the same.

    Example: coatcheck sandbox list --json
    """
    known = client_for(socket).sandboxes()
    found = [each for each in known if every or each["recoverable"] or each["state"] != "ended"]
    if as_json:
        emit_json(found)
        return
    table(
        ("sandbox", "state", "tenant/subject", "policy", "backend", "isolation", "until"),
        (
            (
                each["id"],
                each["state"],
                f"{each['tenant']}/{each['subject']}",
                each["policy"],
                each["backend"],
                each["isolation"],
                _time(each["expires_at"]),
            )
            for each in found
        ),
        "no sandboxes",
    )


def show(sandbox: SandboxArgument, socket: SocketOption = None, as_json: JsonOption = False) -> None:
    """Show one sandbox: its properties, its sessions, and why it ended.

    Example: coatcheck sandbox show sbx_0123456789abcdef
    """
    found = client_for(socket).sandbox(sandbox)
    if as_json:
        emit_json(found)
        return
    for name in ("id", "state", "tenant", "subject", "policy", "opened_by", "backend"):
        typer.echo(f"{name:<10} {found[name]}")
    typer.echo(f"{'isolation':<10} {found['isolation']}: {found['why']}")
    for identity, session in found["sessions"].items():
        typer.echo(f"{'session':<10} {identity} {session}")
    typer.echo(
        f"{'limits':<10} {found['memory_mib']} MiB of memory, {found['cpus']} CPUs, "
        f"{found['disk_mib']} MiB of disk, {found['processes']} processes"
    )
    if found["elastic"] is not None:
        typer.echo(f"{'grows':<10} {growth(found['elastic'])}")
    else:
        typer.echo(f"{'grows':<10} no: {found['one_size']}")
    typer.echo(f"{'created':<10} {_time(found['created_at'])}")
    typer.echo(f"{'expires':<10} {_time(found['expires_at'])}")
    typer.echo(f"{'kept':<10} {described(found['keeping'])}")
    if found["ending"] is not None:
        typer.echo(f"{'ended':<10} {found['ending']}: {found['detail']}")
    if found["recoverable"]:
        typer.echo(f"{'saved':<10} yes: coatcheck sandbox restore {found['id']}")


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
