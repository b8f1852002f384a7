"""`coatcheck sandbox inspect`: the zero-secret proof of one sandbox, and the check of its statement."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from coatcheck.cli.control import JsonOption, SocketOption, client_for, emit_json
from coatcheck.cli.errors import CommandError, ExitCode

POLL_SECONDS = 0.2
"""How often the daemon is asked how far it is."""
SHOWN_FINDINGS = 20
"""The others are in the statement."""
CODES = {"nothing_found": ExitCode.DONE, "found": ExitCode.NO, "incomplete": ExitCode.NO}


def inspect(
    sandbox: Annotated[str | None, typer.Argument(help="Sandbox id.")] = None,
    verify: Annotated[
        Path | None,
        typer.Option(help="Verify a statement written by --json instead; `-` reads standard input."),
    ] = None,
    key: Annotated[
        list[Path] | None, typer.Option(help="With --verify: public key of the daemon (PEM). Repeatable.")
    ] = None,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pause a sandbox and search it, from the host, for every secret that its policies name.

    Prints what was searched and found, or with --json a signed statement. Exit code 1: a secret was found,
    or a part could not be read. docs/inspection.md says what is searched, and what is not.

    Example: coatcheck sandbox inspect sbx_0123456789abcdef --json > statement.json
    """
    if (sandbox is None) == (verify is None):
        raise CommandError(
            "give a sandbox to inspect, or --verify FILE",
            "coatcheck sandbox list shows the sandboxes",
            ExitCode.USAGE,
        )
    if verify is not None:
        statement = _verified(verify, key or [])
        signed: dict[str, Any] = {"verified": True, "statement": statement}
    else:
        signed = _inspected(str(sandbox), socket)
        statement = signed["statement"]
    if as_json:
        emit_json(signed)
    else:
        _show(statement)
        if verify is not None:
            typer.echo("the signature holds")
    if (code := CODES.get(statement["result"], ExitCode.FAILED)) is not ExitCode.DONE:
        raise typer.Exit(code)


def _inspected(sandbox: str, socket: Path | None) -> dict[str, Any]:
    client = client_for(socket)
    said = client.inspect_sandbox(sandbox)
    with _progress() as show:
        try:
            while not said["ended"]:
                time.sleep(POLL_SECONDS)
                said = client.inspection(sandbox)
                show(f"{said['state']}, {said['searched_bytes'] / 1e6:.0f} MB")
        except KeyboardInterrupt:
            client.cancel_inspection(sandbox)
            raise
    if said["signed"] is None:
        raise CommandError(
            f"the inspection {said['state'].replace('_', ' ')}: {said['problem']}",
            "the sandbox was resumed; see the daemon's log, then try again",
        )
    if said["problem"]:
        typer.echo(f"warning: {said['problem']}", err=True)
    signed: dict[str, Any] = said["signed"]
    return signed


def _verified(path: Path, keys: list[Path]) -> dict[str, Any]:
    from coatcheck.inspection.statement import MOST_BYTES
    from coatcheck.inspection.statement import verify as verify_statement
    from coatcheck.telemetry.audit.checkpoint import load_public_key

    if not keys:
        raise CommandError(
            "--verify needs the public key: --key FILE",
            "get it from the operator of the daemon: checkpoint-key.pem.pub in the state directory",
            ExitCode.USAGE,
        )
    try:
        public = [load_public_key(each) for each in keys]
    except ValueError as error:
        raise CommandError(f"a key cannot be read: {error}", "give the PEM file of the public key") from None
    if str(path) == "-":
        content = sys.stdin.buffer.read(MOST_BYTES + 1)
    else:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    return verify_statement(content, public)


def _show(statement: dict[str, Any]) -> None:
    for region in statement["regions"]:
        size = f"{region['searched'] / 1e6:.1f} of {region['bytes'] / 1e6:.1f} MB"
        typer.echo(f"{region['name']:<20} {size}")
        for why, times in region["unread"].items():
            typer.echo(f"  not read: {why}, {times} times")
    typer.echo(f"{'checked':<20} {', '.join(statement['checked']) or 'nothing'}")
    for name, why in statement["not_checked"].items():
        typer.echo(f"{'not checked':<20} {name}: {why}")
    for found in statement["findings"][:SHOWN_FINDINGS]:
        where = ", ".join(part for part in (found["region"], found["item"]) if part)
        what = f"{found['credential']} ({found['kind']}, {found['encoding']})"
        typer.echo(f"FOUND {what} in {where} at {found['offset']}")
    at = datetime.fromtimestamp(statement["ended_at_ms"] / 1000, UTC)
    typer.echo(
        f"{statement['result'].replace('_', ' ')}: {statement['findings_total']} findings in "
        f"{statement['bytes_searched'] / 1e6:.1f} MB of {statement['sandbox']}, {at:%Y-%m-%d %H:%M:%S} UTC; "
        f"it stood still for {statement['paused_ms'] / 1000:.1f} s"
    )


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Shows a line that changes, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("inspecting …") as status:
        yield lambda text: status.update(f"inspecting … {text}")
