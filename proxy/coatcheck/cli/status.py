"""`coatcheck status` and `coatcheck logs`: the daemon that runs, and what it said."""

from typing import Annotated

import typer

from coatcheck.cli.control import JsonOption, SocketOption, StateDirOption, client_for, emit_json
from coatcheck.cli.errors import CommandError, ExitCode


def status(socket: SocketOption = None, as_json: JsonOption = False) -> None:
    """Show the running daemon, and which secret stores answer.

    Its process, directories, addresses and policies. Exit code 1: it runs and is not ready, or a store does
    not answer. 3: no daemon answers.

    Example: coatcheck status
    """
    found = client_for(socket).status()
    bad = not found["ready"] or any(each["trouble"] for each in found["stores"])
    if as_json:
        emit_json(found)
    else:
        ready = "ready" if found["ready"] else f"not ready: {', '.join(found['missing'])}"
        rows = [("daemon", f"pid {found['pid']}, version {found['version']}, {ready}")]
        rows += [(each["name"], each["value"]) for each in found["facts"]]
        rows += [
            (f"store {each['name']}", f"{each['trouble']}; {each['hint']}" if each["trouble"] else "answers")
            for each in found["stores"]
        ] or [("stores", "none: set COATCHECK_VAULT_URL or COATCHECK_SECRETS_DIR")]
        rows.append(("sessions", f"{found['sessions']} live"))
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            typer.echo(f"{name:<{width}}  {value}")
    if bad:
        raise typer.Exit(ExitCode.NO)


def logs(
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Keep following, until Ctrl-C.")] = False,
    lines: Annotated[
        int, typer.Option("-n", "--lines", min=0, help="Number of lines to start with; 0 shows all.")
    ] = 50,
    state_dir: StateDirOption = None,
) -> None:
    """Show the log of the daemon, also of one that has ended.

    It is what coatcheck serve wrote to standard error. For requests and their verdicts see coatcheck audit
    tail.

    Example: coatcheck logs -f
    """
    from coatcheck.settings.explained import load_settings
    from coatcheck.telemetry.log_file import LOG_FILE, last_lines

    path = load_settings(state_dir=state_dir).state_dir / LOG_FILE
    if not path.is_file():
        raise CommandError(
            f"there is no log at {path}", "a daemon writes it: coatcheck serve; or give its --state-dir"
        )
    for line in last_lines(path, lines or None, follow=follow):
        typer.echo(line, nl=False)
