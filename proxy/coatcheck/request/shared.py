"""What the requests of one plane share: state, known secrets, limits, approvals, and the record of all."""

import logging
from collections.abc import Callable

from coatcheck.request.approvals import Approvals
from coatcheck.request.known_secrets import KnownSecrets
from coatcheck.request.probing import Probing
from coatcheck.secrets.cache import CachedStore
from coatcheck.state.buckets import Buckets
from coatcheck.state.state import State
from coatcheck.telemetry.events import Event

logger = logging.getLogger(__name__)

MAX_REPORTED = 100_000
"""(session, credential) pairs remembered as reported: ten times the sessions a daemon may hold."""


class Shared:
    """Belongs to the plane's event loop. `emit` may raise: what cannot be recorded does not leave (I8)."""

    def __init__(self, state: State, store: CachedStore, emit: Callable[[Event], None]) -> None:
        self.state = state
        self.emit = emit
        self.buckets = Buckets()
        self.secrets = KnownSecrets(state, store)
        self.approvals = Approvals(lambda event: self.emit(event), state.clock.now)
        self.probing = Probing(state, self.tell)
        self._reported: set[tuple[str, str]] = set()

    def tell(self, event: Event) -> None:
        """Record something that has happened already: failing to must not undo it."""
        try:
            self.emit(event)
        except Exception:
            logger.exception("%s could not be recorded", type(event).__name__)

    def first_report(self, session_id: str, credential: str) -> bool:
        """True once a session and credential: a handle in a body is reported, not shouted (I4)."""
        key = (session_id, credential)
        if key in self._reported:
            return False
        if len(self._reported) >= MAX_REPORTED:
            self._reported.clear()  # rather tell twice than never
        self._reported.add(key)
        return True
