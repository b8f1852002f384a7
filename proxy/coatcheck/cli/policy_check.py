"""`coatcheck policy check`: everything that is wrong with policy files."""

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coatcheck.cli.control import JsonOption, configured_policy, counted, emit_json
from coatcheck.cli.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from coatcheck.policy.lint.files import FileCheck
    from coatcheck.policy.lint.lint import Linted


def check(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Policy files or directories. Default: the daemon's setting.")
    ] = None,
    fail_on: Annotated[
        str, typer.Option(metavar="warning|error", help="Lowest severity that makes the exit code 1.")
    ] = "warning",
    sarif: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write a SARIF 2.1.0 report for code hosts; - writes to stdout."
        ),
    ] = None,
    today: Annotated[
        str | None,
        typer.Option(
            metavar="YYYY-MM-DD", help="Date for which accepted findings are evaluated. Default: today (UTC)."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find errors, dangers and useless parts in policy files: where, why it matters, what to write instead.

    A file with errors is not loaded. A warning can be accepted in the file, with a reason and a last day:
    see `accepted` in docs/policy-reference.md. Exit code 1: there are findings that are not accepted.

    Example: coatcheck policy check policies/ --sarif findings.sarif
    """
    from coatcheck.policy.file.problem import Level
    from coatcheck.policy.lint.files import lint_path

    if fail_on not in set(Level):
        raise CommandError(f"there is no level {fail_on!r}", "write warning or error", ExitCode.USAGE)
    day = _day(today)
    checked = [result for path in paths or [configured_policy()] for result in lint_path(path, day)]
    quiet = sarif is not None and str(sarif) == "-"
    if sarif is not None:
        _write_sarif(sarif, [found for result in checked for found in result.findings])
    if as_json and not quiet:
        emit_json([result.as_json() for result in checked])
    elif not quiet:
        _print(checked)
    if any(result.fails(Level(fail_on)) for result in checked):
        raise typer.Exit(ExitCode.NO)


def _day(text: str | None) -> date:
    if text is None:
        return datetime.now(UTC).date()
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise CommandError(f"{text!r} is not a date", "write it like 2027-03-31", ExitCode.USAGE) from None


def _write_sarif(file: Path, findings: "list[Linted]") -> None:
    from coatcheck import __version__
    from coatcheck.policy.lint.sarif import sarif

    text = json.dumps(sarif(findings, __version__), indent=2)
    if str(file) == "-":
        typer.echo(text)
    else:
        file.write_text(text + "\n")


def _print(checked: "list[FileCheck]") -> None:
    from coatcheck.policy.file.codes import EXPLANATIONS

    told = []
    for result in checked:
        for found in result.findings:
            if found.accepted:
                continue
            typer.echo(f"{found.problem} [{found.code}]")
            told.append(found.code)
        accepted = sum(bool(found.accepted) for found in result.findings)
        if result.policy is not None:
            findings = len(result.findings) - accepted
            verdict = f"{findings} to look at" if findings else "ok"
            typer.echo(
                f"{result.path}: {verdict}, {counted(len(result.policy.rules), 'rule')}, "
                f"{counted(len(result.policy.credentials), 'credential')}, sha256 {result.policy.sha256[:16]}"
                + (f", {accepted} accepted" if accepted else "")
            )
    for code in dict.fromkeys(told):
        typer.echo(f"why {code}: {EXPLANATIONS[code].why}")
