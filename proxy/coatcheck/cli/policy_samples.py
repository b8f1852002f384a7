"""`coatcheck policy test`: a policy's samples, run."""

from pathlib import Path
from typing import Annotated

import typer

from coatcheck.cli.control import JsonOption, configured_policy, emit_json
from coatcheck.cli.errors import ExitCode


def try_out(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Files or directories; without: the daemon's setting.")
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(
            help="Samples of the one policy; default: samples/NAME.yaml and samples/NAME/ beside it."
        ),
    ] = None,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Fail when a rule allows no sample that must be allowed.")
    ] = False,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write JUnit XML, for pipelines; - is stdout.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the samples beside policies: requests, and the answers that their authors expect.

    Says which rules no sample shows at work. Exit code 1: an answer differs, or a policy has no samples.

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
