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
        Path | None, typer.Option(help="Samples of the one policy; default: samples/NAME.yaml beside it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the samples beside policies: requests, and the answers that their authors expect.

    Exit code 1: an answer differs, or a policy has no samples.

    Example: coatcheck policy test policies/
    """
    from coatcheck.policyfile.checking import try_samples

    tested = [result for path in paths or [configured_policy()] for result in try_samples(path, samples)]
    if as_json:
        emit_json([result.as_json() for result in tested])
    else:
        for result in tested:
            for failure in result.failures:
                typer.echo(f"{result.path}: {failure}")
            verdict = f"{result.samples - len(result.failures)} of {result.samples} samples as expected"
            typer.echo(f"{result.path}: {verdict if result.samples else f'no samples at {result.where}'}")
    if not all(result.ok for result in tested):
        raise typer.Exit(ExitCode.NO)
