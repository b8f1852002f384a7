"""`coatcheck policy check`: everything that is wrong with policy files."""

from pathlib import Path
from typing import Annotated

import typer

from coatcheck.cli.control import JsonOption, configured_policy, emit_json
from coatcheck.cli.errors import ExitCode


def check(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Files or directories; without: the daemon's setting.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find every mistake in policy files: line, column, what is wrong, what to write instead.

    Warnings do not fail. Exit code 1: at least one file would not be loaded.

    Example: coatcheck policy check policies/default.yaml
    """
    from coatcheck.policyfile.checking import check_paths

    checked = [result for path in paths or [configured_policy()] for result in check_paths(path)]
    if as_json:
        emit_json([result.as_json() for result in checked])
    else:
        for result in checked:
            for problem in result.problems:
                typer.echo(str(problem))
            if result.policy is not None:
                typer.echo(
                    f"{result.path}: ok, {len(result.policy.rules)} rules, "
                    f"{len(result.policy.credentials)} credentials, sha256 {result.policy.sha256[:16]}"
                )
    if not all(result.ok for result in checked):
        raise typer.Exit(ExitCode.NO)
