"""`error: …` and `hint: …` on standard error, and what the exit codes mean.

Whatever a person can cause ends here in two lines. A traceback means a defect of ours.
"""

from collections.abc import Iterable
from enum import IntEnum

import typer

from coatcheck.platform.errors import CoatcheckError


class ExitCode(IntEnum):
    """As `coatcheck --help` lists them; `run` has its command's own code."""

    DONE = 0
    NO = 1
    """It was looked at, and the answer is no: a policy is bad, a log is broken, a request is refused."""
    USAGE = 2
    """Wrong options, arguments or settings."""
    FAILED = 3
    """It could not be done: a daemon, a file or a store is not there or refuses."""
    INTERRUPTED = 130


class CommandError(CoatcheckError):
    """What a command itself finds wrong."""

    def __init__(self, message: str, hint: str = "", code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message, hint)
        self.exit_code = code


def error(message: str, hint: str = "") -> None:
    """Two lines on standard error."""
    note("error", message)
    if hint:
        note("hint", hint)


def note(label: str, text: str) -> None:
    """`label: text` on standard error, in the style of all our messages."""
    lines = [_line(line) for line in text.splitlines() or [""]]
    typer.echo(f"{label}: " + "\n".join([_lower(lines[0]), *(f"  {line}" for line in lines[1:])]), err=True)


def report(problem: BaseException) -> ExitCode | None:
    """Tell what people can cause, and say which code it is. None: it is not of that kind."""
    if isinstance(problem, CoatcheckError):
        error(problem.message, problem.hint)
        return ExitCode(problem.exit_code)
    if isinstance(problem, OSError):
        error(*_of_system(problem))
        return ExitCode.FAILED
    return None


def _of_system(problem: OSError) -> tuple[str, str]:
    what = problem.strerror or str(problem) or type(problem).__name__
    names: Iterable[object] = (problem.filename, problem.filename2)
    where = " and ".join(str(name) for name in names if name)
    match problem:
        case FileNotFoundError() if where:
            return f"{where} does not exist", "check the path"
        case PermissionError() if where:
            return (
                f"{where}: permission denied",
                "run as the user who owns it, or give this user access",
            )
        case _:
            return (f"{where}: {what}" if where else what), ""


def _line(text: str) -> str:
    text = text.strip()
    return text[:-1] if text.endswith(".") and not text.endswith("..") else text


def _lower(text: str) -> str:
    # An acronym or a name written in capitals stays as it is.
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text
