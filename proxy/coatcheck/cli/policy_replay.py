"""`coatcheck policy replay` and `learn`: what audit logs say about a policy, without a daemon."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from coatcheck.cli.control import JsonOption, emit_json
from coatcheck.cli.errors import CommandError, ExitCode
from coatcheck.cli.progress import progress


class Gate(StrEnum):
    """Changes that may fail a pipeline."""

    REFUSES = "refuses"
    ALLOWS = "allows"
    UNKNOWN = "unknown"


Logs = Annotated[
    list[Path] | None,
    typer.Argument(metavar="AUDIT…", help="Audit logs; rotated files are found. Default: the daemon's log."),
]


def replay(
    logs: Logs = None,
    policy: Annotated[
        Path | None,
        typer.Option(help="New policies: a directory replaces all policies, a file replaces one."),
    ] = None,
    of: Annotated[
        str | None,
        typer.Option(
            "--of",
            help=("With a file: name of the policy that it replaces. Default: the policy of the same name."),
        ),
    ] = None,
    fail_on: Annotated[
        list[Gate] | None,
        typer.Option(help="Exit with code 1 if any request changes in this way. Repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show which recorded decisions would change under a new policy.

    No name is resolved and nothing is dialled or fetched. Where the log lacks data, the report says so.

    Example: coatcheck policy replay audit.jsonl --policy policies/ --fail-on refuses
    """
    from coatcheck.policy.checking import load_file
    from coatcheck.policy.file.loading import load_directory
    from coatcheck.policy.replay import LACKING, replay_logs
    from coatcheck.telemetry.redaction import printable

    if policy is None:
        raise CommandError("there is nothing to hold the log against", "give --policy NEW", ExitCode.USAGE)
    if of is not None and policy.is_dir():
        raise CommandError("--of goes with a policy file", "leave it out", ExitCode.USAGE)
    whole = policy.is_dir()
    policies = dict(load_directory(policy)) if whole else {of or policy.stem: load_file(policy)}
    with progress("replaying"):
        report = replay_logs(_logs(logs), policies, whole=whole)
    if as_json:
        emit_json(report.as_json())
    else:
        for group in report.told():
            what = f"{group.method} {group.destination}{group.example}"
            more = f" and {group.count - 1} more" if group.count > 1 else ""
            typer.echo(printable(f"{group.change}: {what}{more} ({group.policy}, {group.request_id})"))
            typer.echo(printable(f"  now: {group.now}"))
            typer.echo(printable(f"  then: {group.then}"))
        counted = ", ".join(f"{count} {change}" for change, count in report.counts.items())
        typer.echo(f"{report.tally.requests} requests: {counted}")
        for count, what in (
            (report.other_policies, "requests under other policies were left out"),
            (report.ungrouped, "more changes are counted and not shown"),
            (report.tally.repeated, "refusals are in the log as counts only, and were left out"),
            (report.tally.unreadable, "lines could not be read: coatcheck audit verify"),
        ):
            if count:
                typer.echo(f"note: {count} {what}")
        for lacking in LACKING:
            typer.echo(f"note: {lacking}")
    if any(report.counts[change] for change in report.counts if change.value in set(fail_on or ())):
        raise typer.Exit(ExitCode.NO)


def learn(
    logs: Logs = None,
    owner: Annotated[str, typer.Option(help="Team that will be responsible for the policy.")] = "nobody yet",
    policy: Annotated[
        str | None, typer.Option(help="Use only requests under the policy of this name.")
    ] = None,
    refused: Annotated[
        bool, typer.Option("--refused", help="Also use requests that were refused because no rule matched.")
    ] = False,
    credentials: Annotated[
        Path | None, typer.Option(help="Policy file that defines the credentials.")
    ] = None,
) -> None:
    """Draft a policy that allows the recorded requests: exact hosts, methods and paths, no wildcards.

    Each line says how often a request was made, by how many sessions, and when. No name is resolved.

    Example: coatcheck policy learn audit.jsonl --credentials policies/default.yaml > draft.yaml
    """
    from coatcheck.injectors.spelling import Wrong
    from coatcheck.policy.file.loading import load_policy, read_file
    from coatcheck.policy.learn import draft
    from coatcheck.policy.learn import learn as learn_from

    defined = read_file(credentials) if credentials is not None else b""
    with progress("learning"):
        learned = learn_from(_logs(logs), policy=policy, refused=refused)
    try:
        text = draft(learned, owner=owner, credentials=defined)
    except Wrong as wrong:
        raise CommandError(f"--owner: {wrong.message}", wrong.instead, ExitCode.USAGE) from None
    load_policy("draft", text.encode())  # what cannot be loaded is told here, with its line
    typer.echo(text, nl=False)


def _logs(given: list[Path] | None) -> list[Path]:
    if given:
        return given
    from coatcheck.cli.audit import LOG
    from coatcheck.settings.explained import load_settings

    return [load_settings().state_dir / LOG]
