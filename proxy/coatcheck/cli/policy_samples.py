"""`coatcheck policy test`: a policy's samples, run."""

from pathlib import Path
from typing import Annotated

import typer

from coatcheck.cli.control import JsonOption, configured_policy, emit_json
from coatcheck.cli.errors import ExitCode


def try_out(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Policy files or directories. Default: the daemon's setting.")
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(help="Samples of the policy. Default: samples/NAME.yaml and samples/NAME/ next to it."),
    ] = None,
    coverage: Annotated[
        bool,
        typer.Option(
            "--coverage", help="Fail if a rule is not used by any sample that expects an allowed request."
        ),
    ] = False,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a JUnit XML report; - writes to stdout.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the sample requests of policies and compare the verdicts with the expected ones.

    Reports rules that no sample uses. Exit code 1: a verdict differs, or a policy has no samples.

    Example: coatcheck policy test policies/ --coverage --junit samples.xml
    """
    from coatcheck.policy.samples.files import try_path

    tested = [result for path in paths or [configured_policy()] for result in try_path(path, samples)]
    quiet = junit is not None and str(junit) == "-"
    if junit is not None:
        from coatcheck.policy.samples.junit import junit as written

        typer.echo(written(tested).decode(), nl=False) if quiet else junit.write_bytes(written(tested))
    if as_json and not quiet:
        emit_json([result.as_json() for result in tested])
    elif not quiet:
        for result in tested:
            failures = [trial.failure for _, trial in result.trials if trial.failure]
            for failure in failures:
                typer.echo(f"{result.path}: {failure}")
            count = len(result.trials)
            verdict = f"{count - len(failures)} of {count} samples as expected"
            shown = len(result.rules) - len(result.uncovered)
            covered = f", {shown} of {len(result.rules)} rules shown at work" if result.rules else ""
            typer.echo(
                f"{result.path}: {verdict}{covered}"
                if count
                else f"{result.path}: no samples at {result.where}"
            )
            for rule in result.uncovered if count else ():
                typer.echo(f'{result.path}: no sample that must be allowed is decided by "{rule}"')
    if not all(result.ok and not (coverage and result.uncovered) for result in tested):
        raise typer.Exit(ExitCode.NO)
