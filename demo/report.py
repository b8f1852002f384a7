"""What the demo prints: colours on a terminal, plain in a pipe, at most 100 columns."""

import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.text import Text

WIDTH = 100
_INDENT = "  "
_LABEL = 11


class Report:
    """Prints at once, and remembers what did not end as it must."""

    def __init__(self, stream: TextIO | None = None) -> None:
        stream = stream or sys.stdout
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._width = min(WIDTH, self._console.width) if self._console.is_terminal else WIDTH
        self.differed: list[str] = []
        self.checks = 0
        self._differed_before = 0

    def line(self, text: str = "", style: str = "") -> None:
        """One line of ours or of a stranger: no control characters pass, nothing is wider than the page."""
        for part in textwrap.wrap(printable(text), self._width, subsequent_indent=_INDENT) or [""]:
            self._console.print(Text(part, style=style))

    def headline(self, text: str) -> None:
        """Begins a block: what `outcome` says is about it."""
        self._differed_before = len(self.differed)
        self._console.print()
        self._console.print(Text(printable(text), style="bold cyan"))

    def field(self, label: str, text: str, style: str = "") -> None:
        """`label  text`, wrapped below itself."""
        first = f"{_INDENT}{label:<{_LABEL}}"
        parts = textwrap.wrap(printable(text), self._width - len(first)) or [""]
        for n, part in enumerate(parts):
            self._console.print(Text(first if n == 0 else " " * len(first)).append(part, style=style))

    def columns(self, widths: Sequence[int], cells: Sequence[str], style: str = "") -> None:
        """One row; a cell that is too long is cut, so that columns stay columns."""
        row = _INDENT
        for width, cell in zip(widths, cells, strict=True):
            cell = printable(cell)
            row += (cell if len(cell) <= width else cell[: width - 1] + "…").ljust(width) + " "
        self._console.print(Text(row.rstrip(), style=style))

    def check(self, held: bool, what: str) -> bool:
        """A claim that must hold. Said only in the end unless it does not."""
        self.checks += 1
        if not held:
            self.differed.append(what)
            self._console.print(Text(f"{_INDENT}DIFFERS: {printable(what)}", style="bold red"))
        return held

    def outcome(self, what: str) -> bool:
        """The end of a block: `what` is said if all its checks held."""
        held = len(self.differed) == self._differed_before
        if held:
            self._console.print(Text(f"{_INDENT}[ok] {printable(what)}", style="green"))
        return held


def printable(text: str) -> str:
    """Without control characters: what a sandbox or an upstream says must not steer a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)
