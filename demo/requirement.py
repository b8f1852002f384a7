"""What the demo needs on this machine, and the error that says what is missing."""

PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where the sandbox looks for commands: nothing of a home directory exists in it."""


class DemoError(Exception):
    """The demo cannot run here. `hint` says what to install."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint
