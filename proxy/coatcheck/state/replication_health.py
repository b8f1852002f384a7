"""Whether this daemon hears what the others of its fleet revoke. While it does not, nothing leaves."""

from threading import Condition
from typing import Final

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.session import Now
from coatcheck.state.errors import Problem, StateError

CATCH_UP_SECONDS: Final = 5.0
"""Ten times as long as the shared state is not asked for news."""


class ReplicationHealth:
    """Written by the follower of the shared state, read by every request and chunk, without a lock."""

    def __init__(self, max_silence: float) -> None:
        self.max_silence = max_silence
        """Seconds."""
        self.heard_at = float("-inf")
        """Monotonic seconds: the last moment of which all is known that the shared state held then."""
        self.why = "the shared state has not been read yet"
        """Why nothing newer is known: for logs, records and /readyz; no secret in it."""
        self._news = Condition()

    def heard(self, at: float) -> None:
        """All is known here that the shared state held at that moment, monotonic seconds."""
        with self._news:
            self.heard_at = at
            self._news.notify_all()

    def catch_up(self, now: Now) -> None:
        """Returns once all is known that the others gave before `now`. StateError(NOT_DURABLE) when that
        takes too long: what was taken from all sessions may have missed some."""
        with self._news:
            if not self._news.wait_for(lambda: self.heard_at >= now.monotonic, CATCH_UP_SECONDS):
                raise StateError(
                    Problem.NOT_DURABLE,
                    "done with what is known here, but the others may have opened sessions a moment before"
                    f" ({self.why})",
                    "Repeat it, or ask another daemon; see /readyz and docs/fleet.md.",
                )

    def stale(self, now: Now) -> Deny | None:
        """Why nothing that needs a session may go on; None while it may."""
        if now.monotonic < self.heard_at + self.max_silence:
            return None
        return Deny(Reason.SHARED_STATE_SILENT, self.why, retry_after=2.0)
