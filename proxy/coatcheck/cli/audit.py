"""`coatcheck audit …`: read the audit log, and prove that it is whole."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from coatcheck.cli.control import JsonOption, StateDirOption, emit_json
from coatcheck.cli.errors import CommandError, ExitCode

app = typer.Typer(
    name="audit",
    no_args_is_help=True,
    help="The audit log.\n\nExample: coatcheck audit tail --follow --alarms",
)

LOG = Path("audit/audit.jsonl")
"""The daemon's log, in its state directory."""


@app.command()
def verify(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help=(
                "Audit log; rotated files are found. Give several logs oldest first. Default: the"
                " daemon's log."
            )
        ),
    ] = None,
    key: Annotated[
        list[Path] | None,
        typer.Option(
            help=("Public key (PEM) from a copy kept elsewhere. Repeat the option if the key has changed.")
        ),
    ] = None,
    checkpoints: Annotated[Path | None, typer.Option(help="Checkpoint file of the second sink.")] = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the hash chain, its signed checkpoints, and copies of the checkpoints kept elsewhere.

    Without --key the daemon's own key is used, which the owner of the state directory could replace;
    without --checkpoints a truncated log can look intact. Exit code 1: the log is broken.

    Example: coatcheck audit verify --key audit-key.pub --checkpoints /mnt/worm/checkpoints.jsonl
    """
    from coatcheck.telemetry.audit.checkpoint import load_public_key
    from coatcheck.telemetry.audit.verify import verify as verify_log

    logs = paths or [_log(state_dir)]
    # In the state directory, one above its log: a user who may write the log alone must not replace the key.
    near = [folder / "checkpoint-key.pem.pub" for folder in logs[-1].absolute().parents[:2]]
    keys = key or [path for path in near if path.is_file()][:1]
    try:
        public = [load_public_key(path) for path in keys]
    except ValueError as error:
        raise CommandError(f"a key cannot be read: {error}", "give the PEM file of the public key") from None
    with _progress("verifying"):
        report = verify_log(logs[0] if len(logs) == 1 else logs, public or None, checkpoints)
    if as_json:
        emit_json({"ok": report.ok} | asdict(report))
    else:
        for found in report.findings:
            typer.echo(f"{found.file}:{found.line}: {found.kind}: {found.what}")
            typer.echo(f"  {found.next}")
        signed = (
            f"signed through record {report.signed_through}" if public else "signatures not checked, no key"
        )
        if public and not key:
            signed += f" (key from {keys[0]})"
        copies = f", {report.checkpoints} checkpoints kept elsewhere match" if checkpoints else ""
        state = "whole" if report.ok else f"BROKEN, {report.problems} problems"
        covered = f"records {report.first_seq} to {report.last_seq} in {report.files} files"
        typer.echo(f"{state}: {covered}, {signed}{copies}")
    if not report.ok:
        raise typer.Exit(ExitCode.NO)


@app.command()
def tail(
    path: Annotated[Path | None, typer.Argument(help="Audit log. Default: the daemon's log.")] = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Keep following, across rotations, until Ctrl-C.")
    ] = False,
    lines: Annotated[
        int, typer.Option("-n", "--lines", min=0, help="Number of records to start with; 0 shows all.")
    ] = 50,
    session: Annotated[str | None, typer.Option(help="Show only records of this session.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only sessions or records of this tenant.")] = None,
    reason: Annotated[str | None, typer.Option(help="Show only refusals with this reason.")] = None,
    alarms: Annotated[bool, typer.Option("--alarms", help="Show only alarms.")] = False,
    refused: Annotated[bool, typer.Option("--refused", help="Show only refused requests.")] = False,
    shadow: Annotated[
        bool,
        typer.Option("--shadow", help="Show only requests that candidate policies would decide differently."),
    ] = False,
    state_dir: StateDirOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the raw records, one per line.")] = False,
    as_ocsf: Annotated[
        bool, typer.Option("--ocsf", help="Print OCSF events for a SIEM, one JSON object per line.")
    ] = False,
) -> None:
    """Show the newest records, one line each.

    \b
    Examples:
      coatcheck audit tail -f --session s_7GmQ2w
      coatcheck audit tail -f -n 0 --ocsf
    """
    from coatcheck.telemetry.audit.ocsf import event
    from coatcheck.telemetry.audit.tail import Filters, records, render

    if alarms + refused + shadow > 1:
        raise CommandError(
            "--alarms, --refused and --shadow are different records", "give one of them", ExitCode.USAGE
        )
    filters = Filters(
        type="alarm" if alarms else "decision" if refused else "shadow" if shadow else None,
        outcome="deny" if refused else None,
        reason=reason,
        session=session,
        tenant=tenant,
    )
    found: Iterator[dict[str, Any]] = records(
        path or _log(state_dir), follow=follow, filters=filters, last=lines or None
    )
    try:
        for record in found:
            if not as_ocsf:
                typer.echo(json.dumps(record) if as_json else render(record))
            elif (told := event(record)) is not None:
                typer.echo(json.dumps(told))
    except FileNotFoundError as problem:
        hint = "name the daemon's directory: --state-dir DIRECTORY, or COATCHECK_STATE_DIR"
        raise CommandError(str(problem), hint) from None


def _log(state_dir: Path | None) -> Path:
    from coatcheck.settings.explained import load_settings

    return load_settings(state_dir=state_dir).state_dir / LOG


def _progress(what: str) -> Any:
    from coatcheck.cli.progress import progress

    return progress(what)
