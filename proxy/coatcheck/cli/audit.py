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
            help="The log; its rotated files are found. Several: oldest first. Without: the daemon's."
        ),
    ] = None,
    key: Annotated[
        list[Path] | None, typer.Option(help="The public key kept elsewhere (PEM); repeat it after a change.")
    ] = None,
    checkpoints: Annotated[Path | None, typer.Option(help="The second sink's file of checkpoints.")] = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the hash chain, its signed checkpoints, and the copies of those that were kept elsewhere.

    Without --key the daemon's own is used, which whoever owns the state directory could have replaced;
    without --checkpoints a log whose end was cut off can look whole. Exit code 1: the log is broken.

    Example: coatcheck audit verify --key audit-key.pub --checkpoints /mnt/worm/checkpoints.jsonl
    """
    from coatcheck.telemetry.audit.checkpoint import load_public_key
    from coatcheck.telemetry.audit.verify import verify as verify_log

    logs = paths or [_log(state_dir)]
    # In the state directory, one above its log: whoever may write the log alone must not replace the key.
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
        copies = f", {report.checkpoints} checkpoints kept elsewhere agree" if checkpoints else ""
        state = "whole" if report.ok else f"BROKEN, {report.problems} problems"
        covered = f"records {report.first_seq} to {report.last_seq} in {report.files} files"
        typer.echo(f"{state}: {covered}, {signed}{copies}")
    if not report.ok:
        raise typer.Exit(ExitCode.NO)


@app.command()
def tail(
    path: Annotated[Path | None, typer.Argument(help="The log; without: the daemon's.")] = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on, across rotations, until Ctrl-C.")
    ] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Records to begin with; 0: all.")] = 50,
    session: Annotated[str | None, typer.Option(help="Only this session's.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    reason: Annotated[str | None, typer.Option(help="Only refusals for this reason.")] = None,
    alarms: Annotated[bool, typer.Option("--alarms", help="Only alarms.")] = False,
    refused: Annotated[bool, typer.Option("--refused", help="Only refused requests.")] = False,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Only what candidate policies would change.")
    ] = False,
    state_dir: StateDirOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="The records as they are, one a line.")] = False,
    as_ocsf: Annotated[
        bool, typer.Option("--ocsf", help="As OCSF events for a SIEM, one JSON object a line.")
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
