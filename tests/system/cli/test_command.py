"""`coatcheck` as a whole: help, exit codes, and how it fails."""

import subprocess
from pathlib import Path

import pytest

from coatcheck import __version__
from tests.cli.transcript import COATCHECK, coatcheck, environment

COMMANDS = [
    "serve", "dev", "run", "demo", "doctor",
    "session create", "session renew", "session rebind", "session revoke", "session list", "session show",
    "policy check", "policy test", "policy explain", "policy schema",
    "ca new", "ca bundle", "ca env", "audit verify", "audit tail",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, tmp_path: Path) -> None:
    """The help is the documentation; nobody learns a command without seeing it used."""
    said = coatcheck(*command.split(), "--help", cwd=tmp_path)
    assert said.code == 0
    assert said.out.startswith(f"Usage: coatcheck {command}")
    assert f"coatcheck {command.split()[0]}" in said.out.partition("Example")[2]
    assert not said.err


def test_help_lists_the_exit_codes(tmp_path: Path) -> None:
    """A program that calls us must know what to make of the answer."""
    out = coatcheck("--help", cwd=tmp_path).out
    for line in (
        "0    success",
        "1    the check failed",
        "2    wrong options",
        "3    it could not",
        "130  interrupted",
    ):
        assert line in out


def test_the_version(tmp_path: Path) -> None:
    """One line, for reports."""
    assert coatcheck("--version", cwd=tmp_path) == coatcheck("--version", cwd=tmp_path)
    assert coatcheck("--version", cwd=tmp_path).out == f"coatcheck {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "err"),
    [
        (["nosuch"], "error: no such command 'nosuch'\nhint: see coatcheck --help\n"),
        (["serve", "--frob"], "error: no such option: --frob\nhint: see coatcheck serve --help\n"),
        (
            ["policy", "explain", "GET"],
            "error: missing argument 'url'\nhint: see coatcheck policy explain --help\n",
        ),
        (
            ["ca", "new", "--days", "many"],
            (
                "error: invalid value for '--days': Input should be a valid integer, unable to parse "
                "string as an integer\nhint: see coatcheck ca new --help\n"
            ),
        ),
        (
            ["ca", "env", "--style", "csh"],
            "error: there is no style 'csh'\nhint: write sh, fish, json or dotenv\n",
        ),
    ],
)
def test_wrong_use_is_told_in_two_lines(arguments: list[str], err: str, tmp_path: Path) -> None:
    """Exit code 2, nothing on standard output, and where to read more."""
    said = coatcheck(*arguments, cwd=tmp_path)
    assert (said.code, said.out, said.error) == (2, "", err)


def test_without_arguments_the_help_is_shown_and_it_is_no_success(tmp_path: Path) -> None:
    """A script that lost its arguments notices."""
    said = coatcheck(cwd=tmp_path)
    assert said.code == 2 and "Commands:" in said.err


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    """`coatcheck policy schema | head -1` ends quietly."""
    shell = subprocess.run(
        ["/bin/sh", "-c", f"'{COATCHECK}' policy schema | head -1"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert (shell.stdout, shell.stderr) == ("{\n", "")
