"""Whether this daemon hears what the others of its fleet revoke. While it does not, nothing leaves."""

from coatcheck.decision.session import Now
from coatcheck.decision.verdict import Deny, Reason


class Hearing:
    """Written by whoever reads the shared log, read by every request and chunk, without a lock."""

    def __init__(self, max_silence: float) -> None:
        self.max_silence = max_silence
        """Seconds."""
        self.heard_at = float("-inf")
        """Monotonic seconds: the last moment of which all is known that the shared log held then."""
        self.why = "the shared state has not been read yet"
        """Why nothing newer is known: for logs, records and /readyz; no secret in it."""

    def deaf(self, now: Now) -> Deny | None:
        """Why nothing that needs a session may go on; None while it may."""
        if now.monotonic < self.heard_at + self.max_silence:
            return None
        return Deny(Reason.SHARED_STATE_SILENT, self.why, retry_after=2.0)
