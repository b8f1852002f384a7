"""The table of commands."""

import pytest
import typer

from coatcheck.cli import HELP
from coatcheck.cli.commands import COMMANDS, command_line


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_had_alone_by_its_name(name: str) -> None:
    """A typed command imports no other; what it is called in its file and in the table is the same."""
    alone = typer.main.get_command(command_line([name]))
    assert list(getattr(alone, "commands", ())) == [name]


def test_help_names_every_command() -> None:
    """It is a file; `make docs` writes it."""
    shown = HELP.read_text().partition("Commands:\n")[2].splitlines()
    assert {line.split()[0] for line in shown} == set(COMMANDS)
