"""Scripts for shells; tests/system/cli/test_fuzzed_command_lines.py lets bash use one."""

import pytest

from coatcheck.cli.completion import SHELLS, completion
from coatcheck.cli.errors import CommandError, ExitCode


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_names_the_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The one that is typed."""
    completion(shell)
    said = capsys.readouterr().out
    assert "_COATCHECK_COMPLETE" in said and "coatcheck" in said


def test_another_shell_is_told_which_there_are() -> None:
    """Nothing is printed that a shell would read."""
    with pytest.raises(CommandError, match="no completion for 'tcsh'") as caught:
        completion("tcsh")
    assert caught.value.exit_code == ExitCode.USAGE and "bash, zsh or fish" in caught.value.hint
