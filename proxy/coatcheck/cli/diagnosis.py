"""`coatcheck doctor`."""

from dataclasses import asdict
from typing import Annotated

import typer

from coatcheck.cli.control import JsonOption, SocketOption, StateDirOption, emit_json
from coatcheck.cli.errors import ExitCode
from coatcheck.cli.progress import progress


def doctor(
    socket: SocketOption = None,
    state_dir: StateDirOption = None,
    sandbox: Annotated[
        list[int] | None,
        typer.Option(
            "--sandbox",
            metavar="PID",
            help=(
                "Check the sandbox of this process instead, for anything that could undo its"
                " network rules. Repeatable."
            ),
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check for common setup mistakes. Changes nothing.

    It uses the daemon's settings: run it as the daemon's user and with its environment. It reads every secret
    that the policies name from Vault, and shows none. Exit code 1: at least one problem; warnings do not
    fail.

    Example: sudo -u coatcheck env COATCHECK_CONFIG=/etc/coatcheck/config.toml coatcheck doctor

    Example: sudo coatcheck doctor --sandbox "$(docker inspect -f '{{.State.Pid}}' agent)"
    """
    from coatcheck.doctor.finding import Level

    with progress("examining"):
        if sandbox:
            from coatcheck.doctor.sandbox import sandbox as look_at

            findings = [found for pid in sandbox for found in look_at(pid)]
        else:
            from coatcheck.doctor.examination import examine

            findings = examine(control_socket=socket, state_dir=state_dir)
    problems = sum(found.level is Level.PROBLEM for found in findings)
    warnings = sum(found.level is Level.WARNING for found in findings)
    if as_json:
        emit_json({"ok": not problems, "findings": [asdict(found) for found in findings]})
    else:
        for found in findings:
            typer.echo(f"{found.level:<8} {found.check}: {found.message}")
            if found.hint:
                typer.echo(f"{'':<8} hint: {found.hint}")
        typer.echo(f"{problems} problems, {warnings} warnings")
    if problems:
        raise typer.Exit(ExitCode.NO)
