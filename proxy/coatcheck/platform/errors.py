"""The base of all errors that a person can cause or mend."""


class CoatcheckError(Exception):
    """What happened (`message`) and what to do next (`hint`, or ""). Neither holds a secret or a handle."""

    exit_code: int = 3
    """What a command that fails of it exits with (`cli.errors.ExitCode`)."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
