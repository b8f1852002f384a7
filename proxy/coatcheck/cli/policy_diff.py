"""`coatcheck policy diff`: what changes in meaning between two versions of policies."""

from pathlib import Path
from typing import Annotated

import typer

from coatcheck.cli.control import JsonOption, emit_json
from coatcheck.cli.errors import CommandError, ExitCode, note

FAIL_ON = {
    "widen": frozenset({"widens"}),
    "narrow": frozenset({"narrows"}),
    "change": frozenset({"widens", "narrows", "changes"}),
    "never": frozenset[str](),
}


def diff(
    old: Annotated[
        Path, typer.Argument(help="Old policy file or directory; /dev/null stands for no policy.")
    ],
    new: Annotated[Path, typer.Argument(help="New policy file or directory.")],
    fail_on: Annotated[
        str,
        typer.Option(metavar="widen|narrow|change|never", help="Kind of change that makes the exit code 1."),
    ] = "never",
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown for a pull request comment.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two sets of policies: which requests become allowed or refused. All requests are compared.

    Covers hosts, ports, methods, paths, credentials, session kinds, limits, and protection of credentials.

    Example: coatcheck policy diff before/policies policies --fail-on widen
    """
    from coatcheck.policy.diff.comparing import compare_paths
    from coatcheck.policy.diff.rendering import as_json as values
    from coatcheck.policy.diff.rendering import as_markdown, as_text

    if fail_on not in FAIL_ON:
        hint = f"write one of: {', '.join(FAIL_ON)}"
        raise CommandError(f"{fail_on!r} is nothing to fail on", hint, ExitCode.USAGE)
    for path in (old, new):
        path.stat()
    changes = compare_paths(old, new)
    if as_json:
        emit_json(values(changes))
    else:
        typer.echo(as_markdown(changes) if markdown else as_text(changes), nl=False)
    found = {change.direction.value for change in changes} & FAIL_ON[fail_on]
    if found:
        note("note", f"exit code 1, as --fail-on {fail_on} asks: it {' and '.join(sorted(found))}")
        raise typer.Exit(ExitCode.NO)
