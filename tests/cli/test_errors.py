"""`error: …` and `hint: …`: the style, and who is told apart from a defect."""

import pytest

from coatcheck.cli.errors import CommandError, ExitCode, note, report
from coatcheck.platform.private_files import PrivateFileError
from coatcheck.policy.file.problem import PolicyError, Problem
from coatcheck.settings.explained import SettingsProblem


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("The daemon is gone.", "the daemon is gone"),
        ("TLS is spoken there", "TLS is spoken there"),
        ("COATCHECK_X is no setting", "COATCHECK_X is no setting"),
        ("and so on …", "and so on …"),
        ("and so on...", "and so on..."),
        ("A key\nB: Second line.", "a key\n  B: Second line"),
    ],
)
def test_messages_are_lower_case_and_without_a_period(
    text: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever they come from: other layers end their sentences."""
    note("error", text)
    assert capsys.readouterr().err == f"error: {line}\n"


@pytest.mark.parametrize(
    ("problem", "code", "err"),
    [
        (CommandError("no", "do it"), 3, "error: no\nhint: do it\n"),
        (CommandError("no", code=ExitCode.USAGE), 2, "error: no\n"),
        (PrivateFileError("it is open", "close it"), 3, "error: it is open\nhint: close it\n"),
        (SettingsProblem("x is wrong", "write y"), 2, "error: x is wrong\nhint: write y\n"),
        (FileNotFoundError(2, "No such file", "a"), 3, "error: a does not exist\nhint: check the path\n"),
        (OSError(28, "No space left on device", "a"), 3, "error: a: No space left on device\n"),
        (
            PolicyError([Problem(3, 1, "unknown key", "write rules", file="p.yaml")]),
            1,
            (
                "error: the policy cannot be used\n  p.yaml:3:1: error: unknown key; write rules\n"
                "hint: coatcheck policy check --help\n"
            ),
        ),
    ],
)
def test_what_people_can_cause_is_told(
    problem: BaseException, code: int, err: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says its exit code."""
    assert report(problem) == code
    assert capsys.readouterr().err == err


def test_a_defect_is_not_dressed_up(capsys: pytest.CaptureFixture[str]) -> None:
    """A TypeError is ours to mend: it needs its traceback."""
    assert report(TypeError("boom")) is None
    assert capsys.readouterr().err == ""
