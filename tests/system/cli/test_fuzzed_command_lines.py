"""Whatever is typed, and whatever settings hold: two lines and a code, never a traceback."""

import io
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from coatcheck.cli import run_command_line
from coatcheck.cli.commands import command_line
from coatcheck.settings.daemon import Settings
from coatcheck.settings.explained import SettingsProblem, load_settings
from tests.cli.transcript import COATCHECK, coatcheck, environment

LINES = 400
WORDS = (
    *(
        "",
        "-",
        "--",
        "é",
        "\udcff",
        "x" * 5000,
        "..",
        "dir",
        "file",
        "none",
        "0",
        "-1",
        "9" * 25,
        "nan",
        "inf",
    ),
    *("ses_" + "0" * 24, "sbx_" + "0" * 16, "=", "a=b", "https://", "https://x", "http://[::1", "GET", "["),
    *("%00", "\n", "\x1b[31m", "*", ".", "~nobody/x", "{}", "null", "a:b", "1:2:3", "1e400"),
)
"""Nothing absolute: what a command makes, it makes below its directory."""
STARTS = frozenset(
    {
        *("serve", "dev", "demo", "sidecar", "run", "sandbox run", "image build", "doctor", "completion"),
        *("redirect apply", "redirect remove", "admission serve"),
    }
)
"""What runs until it is ended, changes the machine, or downloads."""
CODES = frozenset({0, 1, 2, 3, 125, 126, 127, 130})


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "commands"):
        yield path, command
    else:
        for name, inner in command.commands.items():
            yield from leaves(inner, (*path, name))


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, a directory and no settings."""
    for name in tuple(os.environ):
        if name.startswith("COATCHECK_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    work = tmp_path / "a/b"
    (work / "dir").mkdir(parents=True)
    (work / "file").write_text("not what is expected\n")
    monkeypatch.chdir(work)
    return work


def test_no_command_line_ends_in_a_traceback(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Commands with arguments and options that somebody mistyped, pasted or made up."""
    chosen = random.Random(20261123)
    commands = [
        each for each in leaves(typer.main.get_command(command_line())) if " ".join(each[0]) not in STARTS
    ]
    assert len(commands) > 50
    for _ in range(LINES):
        path, command = chosen.choice(commands)
        options = [
            option
            for parameter in command.params
            for option in parameter.opts
            if option.startswith("-") and option not in ("-f", "--follow")
        ]
        line = list(path)
        for _ in range(chosen.randint(0, 4)):
            if options and chosen.random() < 0.5:
                line.append(chosen.choice(options))
            line.append(chosen.choice(WORDS))
        monkeypatch.setattr(sys, "stdin", io.StringIO("typed\n"))
        code = run_command_line(line)
        said = capfdbinary.readouterr()
        assert code in CODES and b"Traceback" not in said.err, (line, code, said.err)
        assert code in (0, 1) or said.err, line


def read() -> SettingsProblem | None:
    try:
        load_settings()
    except SettingsProblem as problem:
        return problem
    return None


def test_no_value_of_a_setting_ends_in_a_traceback(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each setting with odd values is taken, or told by its name; and so is a settings file of any bytes."""
    chosen = random.Random(20261123)
    for name in Settings.model_fields:
        for value in chosen.sample(WORDS, 5):
            monkeypatch.setenv(f"COATCHECK_{name.upper()}", value)
            problem = read()
            assert problem is None or (str(problem) and problem.hint), (name, value)
        monkeypatch.delenv(f"COATCHECK_{name.upper()}")
    for _ in range(50):
        (bare / "config.toml").write_bytes(chosen.randbytes(chosen.randint(0, 60)))
        monkeypatch.setenv("COATCHECK_CONFIG", chosen.choice(["config.toml", "dir", "none", "", "\udcff"]))
        problem = read()
        assert problem is None or str(problem)


def test_bytes_that_are_no_text_are_said_to_be_so(bare: Path) -> None:
    """An id from a terminal in another encoding, through the real command."""
    said = coatcheck("session", "show", "\udcff", cwd=bare)
    assert said.code == 2 and said.error.startswith("error: an argument is not UTF-8 text")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(bare: Path, shell: str) -> None:
    """And the shell that it is for takes it, where it is installed."""
    said = coatcheck("completion", shell, cwd=bare)
    assert said.code == 0 and "_COATCHECK_COMPLETE" in said.out


def test_commands_and_options_are_completed(bare: Path) -> None:
    """By the real bash, with the script that was printed."""
    script = coatcheck("completion", "bash", cwd=bare).out
    ask = "COMP_WORDS=(coatcheck session re); COMP_CWORD=2; _coatcheck_completion coatcheck"
    path = f"{Path(COATCHECK).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["/bin/bash", "-c", f"{script}\n{ask}\necho ${{COMPREPLY[@]}}"],
        env=environment(PATH=path), cwd=bare, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.stdout.split() == ["renew", "rebind", "revoke", "revoke-many"], ran.stderr
