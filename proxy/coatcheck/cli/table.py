"""Lists on a terminal: headings, aligned columns, and a word where there is nothing."""

import sys
from collections.abc import Iterable, Sequence

import typer


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], empty: str) -> None:
    """Print `rows` below `headings`, or `empty` on standard error: a pipe then gets nothing."""
    lines = [list(row) for row in rows]
    if not lines:
        typer.echo(empty, err=True)
        return
    heads = [heading.upper() for heading in headings]
    widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
    bold = has_colour()
    for number, line in enumerate([heads, *lines]):
        text = "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        typer.echo(typer.style(text, bold=True) if bold and not number else text)


def has_colour() -> bool:
    """Whether standard output is a terminal whose user has not said no (no-color.org)."""
    if not sys.stdout.isatty():
        return False
    from coatcheck.settings.daemon import process_environment

    environment = process_environment()
    return not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
