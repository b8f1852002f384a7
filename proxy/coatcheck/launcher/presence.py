"""In the supervisor: counts who is connected to a sandbox. One without connections for a while is idle."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator


class Presence:
    """Belongs to one event loop. Before `begin` the sandbox cannot be used yet, and is not idle."""

    def __init__(self, seconds: float | None, idle: Callable[[], None]) -> None:
        """`idle` is called once nobody was connected for `seconds`; never, if that is None."""
        self._seconds = seconds
        self._idle = idle
        self._begun = False
        self._timer: asyncio.TimerHandle | None = None
        self.connected = 0

    def begin(self) -> None:
        """It can be used from now on: also after it slept."""
        self._begun = True
        self._doze()

    def stop(self) -> None:
        self._begun = False
        self._stay_awake()

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Somebody is connected for as long as the block lasts."""
        self.connected += 1
        self._stay_awake()
        try:
            yield
        finally:
            self.connected -= 1
            self._doze()

    def _doze(self) -> None:
        self._stay_awake()
        if self._begun and not self.connected and self._seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._idle)

    def _stay_awake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
