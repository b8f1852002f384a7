"""How long one client connection may wait: for a request head, between requests, and within one."""

import time

from coatcheck.decision.denial import Reason

HEAD_SECONDS = 30.0
"""How long a request head or a TLS handshake may take (slow headers). curl and SDKs need milliseconds."""
HELLO_SECONDS = 2.0
"""The same for a ClientHello to a host that is refused. Clients send it at once."""
IDLE_SECONDS = 300.0
"""How long a kept connection without requests is kept. Longer than clients keep theirs."""
ANSWER_SECONDS = 900.0
"""How long an open request may pass without a byte in either direction; models think for minutes."""


class Deadlines:
    """Times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self._head_since: float | None = time.monotonic()
        """Since when a request head is waited for on a fresh or half-read connection."""
        self._last_activity = time.monotonic()
        self._allowed = HEAD_SECONDS

    def await_hello(self) -> None:
        """A TLS handshake is due in which a refusal can be told."""
        self._head_since, self._allowed = time.monotonic(), HELLO_SECONDS

    def await_head(self) -> None:
        """A request head, or a TLS handshake, has begun or is due."""
        self._head_since, self._allowed = time.monotonic(), HEAD_SECONDS

    def head_begins(self) -> None:
        """A piece of a head is here; the first one starts the clock."""
        if self._head_since is None:
            self._head_since = time.monotonic()

    def head_is_read(self) -> None:
        self._head_since = None

    def note_activity(self) -> None:
        """A byte came, from either side."""
        self._last_activity = time.monotonic()

    def overdue(self, now: float) -> Reason | None:
        """Why a connection without a request must end; None while it may stay."""
        if self._head_since is not None and now - self._head_since > self._allowed:
            return Reason.FRAMING_REFUSED
        if now - self._last_activity > IDLE_SECONDS:
            return Reason.UPSTREAM_TIMEOUT
        return None

    def is_stalled(self, now: float) -> bool:
        """Whether an open request has moved no byte for too long."""
        return now - self._last_activity > ANSWER_SECONDS
