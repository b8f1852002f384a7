"""Lists: headed and aligned for people, plain for pipes, and a word where there is nothing."""

import os
import pty
import subprocess
import sys

import pytest

from coatcheck.cli.table import table
from tests.cli.transcript import environment


def test_columns_are_as_wide_as_what_is_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    """And no line ends in blanks."""
    table(("id", "state"), [("a", "running"), ("a-long-id", "ok")], "nothing")
    assert capsys.readouterr().out == "ID         STATE\na          running\na-long-id  ok\n"


def test_an_empty_list_says_so_beside_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe gets nothing, not a heading that is no row."""
    table(("id",), [], "no sessions")
    assert capsys.readouterr() == ("", "no sessions\n")


PRINT = "from coatcheck.cli.table import table; table(('id',), [('a',)], '')"


@pytest.mark.parametrize(
    ("given", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour_is_for_a_terminal_whose_user_wants_it(given: dict[str, str], coloured: bool) -> None:
    """As no-color.org has it."""
    leader, follower = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-c", PRINT],
            env=environment(**{"TERM": "xterm"} | given), stdout=follower, timeout=30, check=True,
        )  # fmt: skip
        said = os.read(leader, 1000).decode()
    finally:
        os.close(leader)
        os.close(follower)
    assert ("\x1b[1mID\x1b[0m" in said) is coloured and "a" in said


def test_a_pipe_gets_no_colour() -> None:
    """Whatever reads it takes the bytes for data."""
    ran = subprocess.run(
        [sys.executable, "-c", PRINT],
        env=environment(TERM="xterm"),
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert ran.stdout == b"ID\na\n"
