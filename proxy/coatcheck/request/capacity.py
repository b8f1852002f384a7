"""Bounds how many requests run and wait, and how many bytes they buffer, in total and for each session or
tenant (I9).

No sandbox can take all the places or all the memory: the others need them.
"""

from collections.abc import Hashable
from collections.abc import Set as AbstractSet

from coatcheck.decision.denial import Deny, Reason

MAX_CALLS = 5000
"""Requests at once; above it new ones get 503, so that revocation stays fast (I5)."""
MAX_SESSION_CALLS = 512
"""Of one session: twice the connections that it may have."""
MAX_BUFFERED = 67_108_864
"""Bytes of bodies kept until they are whole: four of DynamoDB's largest, 64 of a form's default."""
SHARE = 4
"""One session may have a fourth of them. The last fourth of the places and of the bytes is kept for sessions
that have little (`FEW_CALLS`, `LITTLE`): otherwise ten sessions could take all places, and four all bytes."""
FEW_CALLS = 8
LITTLE = 1_048_576
"""Bytes: a body of the default limit."""


class Capacity[Call: Hashable]:
    """Belongs to the plane's event loop."""

    def __init__(
        self,
        max_calls: int = MAX_CALLS,
        max_session_calls: int = MAX_SESSION_CALLS,
        max_buffered: int = MAX_BUFFERED,
    ) -> None:
        self.max_calls = max_calls
        self.max_session_calls = max_session_calls
        self.max_buffered = max_buffered
        self.buffered = 0
        self._calls: dict[Call, str] = {}
        self._kept: dict[Call, int] = {}
        self._running: dict[str, int] = {}
        self._room: dict[str, int] = {}

    @property
    def calls(self) -> AbstractSet[Call]:
        return self._calls.keys()

    def enter(self, call: Call, session_id: str) -> Deny | None:
        """A request begins. Entering twice is entering once."""
        if call in self._calls:
            return None
        running = self._running.get(session_id, 0)
        reserved = self.max_calls // SHARE if running >= FEW_CALLS else 0
        if len(self._calls) >= self.max_calls - reserved:
            return Deny(Reason.CAPACITY, "too many requests are running", retry_after=1.0)
        if running >= self.max_session_calls:
            return Deny(Reason.CONCURRENCY_LIMITED, f"{running} requests of the session run", retry_after=1.0)
        self._running[session_id] = running + 1
        self._calls[call] = session_id
        return None

    def keep(self, call: Call, count: int) -> Deny | None:
        """So many more bytes of its body are to be kept until it is whole."""
        session_id = self._calls.get(call)
        if session_id is None:
            return Deny(Reason.INTERNAL_ERROR, "a body without a request")
        self.buffered += count
        self._kept[call] = self._kept.get(call, 0) + count
        room = self._room[session_id] = self._room.get(session_id, 0) + count
        share = self.max_buffered // SHARE
        reserved = share if room > LITTLE else 0
        if self.buffered > self.max_buffered - reserved or room > share:
            return Deny(Reason.CAPACITY, "too many bodies are being buffered", retry_after=1.0)
        return None

    def leave(self, call: Call) -> None:
        """The request has ended, and gives back what it had."""
        session_id = self._calls.pop(call, None)
        if session_id is None:
            return
        kept = self._kept.pop(call, 0)
        self.buffered -= kept
        _subtract(self._running, session_id, 1)
        _subtract(self._room, session_id, kept)


class Places:
    """Places to wait in. One tenant may have as many as are still free, which is half of them where it is
    alone: however many sessions it has, there is room for others (dynamic thresholds: Choudhury, Hahne 1998).
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._of: dict[str, int] = {}

    def __len__(self) -> int:
        return self._taken

    def of(self, tenant: str) -> int:
        """How many the tenant has."""
        return self._of.get(tenant, 0)

    def take(self, tenant: str) -> bool:
        """Whether there is one for the tenant; then `leave` must be called once."""
        mine = self._of.get(tenant, 0)
        if mine >= self._most - self._taken:
            return False
        self._of[tenant] = mine + 1
        self._taken += 1
        return True

    def leave(self, tenant: str) -> None:
        """A tenant that has none leaves none: no mistake makes more places than there are."""
        mine = self._of.pop(tenant, 0)
        if mine > 1:
            self._of[tenant] = mine - 1
        self._taken -= min(mine, 1)


def _subtract(counts: dict[str, int], key: str, count: int) -> None:
    left = counts.get(key, 0) - count
    if left > 0:
        counts[key] = left
    else:
        counts.pop(key, None)
