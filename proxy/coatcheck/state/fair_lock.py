"""A lock that goes to the thread that has waited longest."""

from collections import deque
from threading import Lock, get_ident


class FairLock:
    """Like `threading.RLock`, and first come, first served.

    A plain lock goes to the thread that runs when it is released, which is the one that had it: sessions that
    are opened one after the other kept a fleet's follower from it until the daemon counted as deaf, and would
    keep a revocation from the disk.
    """

    def __init__(self) -> None:
        self._guard = Lock()
        """Held for a few steps, never while anything waits."""
        self._owner: int | None = None
        self._depth = 0
        self._waiting: deque[tuple[int, Lock]] = deque()

    @property
    def waiting(self) -> int:
        """How many threads wait for it."""
        return len(self._waiting)

    def __enter__(self) -> None:
        me = get_ident()
        with self._guard:
            if self._owner in (me, None):
                self._owner = me
                self._depth += 1
                return
            turn = Lock()
            turn.acquire()
            self._waiting.append((me, turn))
        turn.acquire()

    def __exit__(self, *about: object) -> None:
        with self._guard:
            self._depth -= 1
            if self._depth:
                return
            self._owner = None
            if self._waiting:
                self._owner, turn = self._waiting.popleft()
                self._depth = 1
                turn.release()
