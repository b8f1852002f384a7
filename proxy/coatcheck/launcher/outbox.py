"""In the supervisor: queues what is sent to a guest: frames of all streams, one a turn, held back while it
is frozen."""

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable

from coatcheck.launcher.mux import Mux

SEND_AHEAD = 128 * 1024
"""Bytes that wait for the socket before senders wait: enough to keep it busy, few enough that a new stream's
first frame leaves soon."""


class Outbox:
    """Of one channel, with the `mux` that makes its frames."""

    def __init__(self, mux: Mux) -> None:
        self.mux = mux
        self.waiting = 0
        """Bytes."""
        self.wanted = False
        """Something has waited for the guest since it was held back: a stream, bytes, an answer's end."""
        self.on_wanted: Callable[[], None] | None = None
        """Called each time."""
        self._unsent: deque[bytes] = deque()
        self._turns: deque[asyncio.Future[None]] = deque()
        self._to_send = asyncio.Event()
        self._kept: list[bytes] | None = None
        """Frames that wait while the guest stands still; None while they need not."""
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._over: Exception | None = None

    async def turn(self) -> None:
        """Waits until this sender may put one frame; in the order of asking, so no stream starves another.
        What `close` was given, once it was called."""
        if self.waiting >= SEND_AHEAD or self._turns:
            turn = asyncio.get_running_loop().create_future()
            self._turns.append(turn)
            try:
                await turn
            finally:
                with contextlib.suppress(ValueError):
                    self._turns.remove(turn)
                # A turn that was given to a sender who no longer wants it goes to the next.
                self._give_turns()
        if self._over is not None:
            raise self._over

    async def turn_to_open(self, *, wakes: bool) -> None:
        """The same for a new stream, which waits while the guest is held back: numbers are given in the order
        of sending. `wakes`: it wants something of the guest."""
        await self.turn()
        while self._kept is not None and self._over is None:
            if wakes:
                self.wake()
            await self._flowing.wait()
            await self.turn()  # raises, if that is why

    def put(self, frame: bytes) -> None:
        """Behind all others. Nothing happens once it is closed."""
        if not frame or self._over is not None:
            return
        if self._kept is not None:
            self.waiting += len(frame)  # senders wait for these, too
            self._kept.append(frame)
        else:
            self.send_soon(frame)

    def send_soon(self, frame: bytes) -> None:
        """Also while the guest is held back."""
        self.waiting += len(frame)
        self._unsent.append(frame)
        self._to_send.set()

    def wake(self) -> None:
        """Something waits for the guest, if it is held back."""
        if self._kept is not None:
            self.wanted = True
            if self.on_wanted is not None:
                self.on_wanted()

    def hold_back(self) -> None:
        """Nothing leaves but by `send_soon`, until `go_on`."""
        if self._kept is None:
            self._kept = []
            self.wanted = False
            self._flowing.clear()

    def go_on(self) -> None:
        """What was held back leaves."""
        kept, self._kept = self._kept, None
        for frame in kept or ():
            self.waiting -= len(frame)
            self.send_soon(frame)
        self._flowing.set()

    def close(self, why: Exception) -> None:
        """Nothing is sent any more; senders that wait for a turn get `why`."""
        self._over = why
        for turn in self._turns:
            if not turn.done():
                turn.set_result(None)
        self._flowing.set()

    async def send(self, sock: socket.socket) -> None:
        """Until cancelled, or the guest is gone."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # a guest that is gone is noticed by the receiver
            while True:
                while self._unsent:
                    frames = b"".join(self._unsent)
                    self._unsent.clear()
                    await loop.sock_sendall(sock, frames)
                    self.waiting -= len(frames)
                    self._give_turns()
                self._to_send.clear()
                await self._to_send.wait()

    def _give_turns(self) -> None:
        if self.waiting < SEND_AHEAD:
            for turn in self._turns:
                if not turn.done():
                    turn.set_result(None)
                    return
