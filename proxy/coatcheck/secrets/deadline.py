"""One budget of time and bytes for a whole answer, not for each `recv`."""

import time


class DeadlineExceeded(TimeoutError):
    """The budget is spent. A TimeoutError, so that socket code treats it as one."""


class Deadline:
    """Time and bytes that one read may use, all of its connects, logins and retries included.

    A socket time-out starts anew with every `recv`, so a server that drips a byte a second holds a
    thread for ever. Here each wait gets what is left, and nothing after that.
    """

    __slots__ = ("bytes_left", "connected", "ends_at", "spent")

    def __init__(self, seconds: float, max_bytes: int) -> None:
        self.ends_at = time.monotonic() + seconds
        self.bytes_left = max_bytes
        self.connected = False
        """True once a connection stood: what fails after that is one path's, not the whole store's."""
        self.spent = ""
        """Which budget ran out: empty, `time` or `bytes`. Libraries rewrap exceptions; this stays."""

    def left(self) -> float:
        """Seconds left, possibly negative."""
        return self.ends_at - time.monotonic()

    def remaining(self) -> float:
        """Seconds left, for the next wait.

        Raises:
            DeadlineExceeded: none are.
        """
        left = self.left()
        if left <= 0:
            self.spent = "time"
            raise DeadlineExceeded("the time for this answer is used up")
        return left

    def take(self, count: int) -> None:
        """Count bytes that arrived.

        Raises:
            DeadlineExceeded: more than this answer may have.
        """
        self.bytes_left -= count
        if self.bytes_left < 0:
            self.spent = "bytes"
            raise DeadlineExceeded("the answer is larger than allowed")
