"""The host's end of a guest's channel, in asyncio: streams with flow control in both directions.

Nothing here waits for one stream at another's cost: received bytes go to their stream's queue, bounded by the
credit that we gave; sent bytes take turns, one frame a turn.
"""

import asyncio
import contextlib
import logging
import secrets
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from coatcheck.launcher.frames import RESYNC, Fields, Rule, Violation, first
from coatcheck.launcher.mux import (
    MAX_GUEST_STREAMS,
    Credited,
    Data,
    Ended,
    Event,
    Greeted,
    Mux,
    Noted,
    Opened,
    Side,
    WasReset,
)
from coatcheck.launcher.stream import ChannelBroken, Chunk, Note, Stream, StreamReset

__all__ = ("Channel", "ChannelBroken", "Chunk", "Hello", "Note", "Stream", "StreamReset", "fresh")

READ_SIZE = 256 * 1024
"""Bytes taken from the channel at once."""
SEND_AHEAD = 128 * 1024
"""Bytes that wait for the socket before senders wait: enough to keep it busy, few enough that a new stream's
first frame leaves soon."""
MAX_UNSENT = 4 * 1024 * 1024
"""Bytes that wait for the socket in all. Only a guest that talks and does not listen gets there."""
ENTROPY_BYTES = 64

_log = logging.getLogger("coatcheck.launcher.channel")


def fresh() -> dict[str, str]:
    """`clock` and `entropy` of now: a guest that is given what was prepared earlier could be a twin."""
    return {"clock": f"{time.time():.9f}", "entropy": secrets.token_hex(ENTROPY_BYTES)}


@dataclass(frozen=True, slots=True)
class Hello:
    """What the guest's agent said of itself."""

    agent: str
    fields: Fields


class Channel:
    """All streams of one guest. `accept` is run as a task for each stream that the guest opens.

    `hello`: what our HELLO says (`generation`, `hostname`, `identities`); `clock` and `entropy` are added
    when it is sent, so that they are fresh. None: the guest was saved, and is told to begin anew; who it is
    then, a `rebind` says. A stream that `accept` leaves open when it returns is dropped.
    """

    def __init__(
        self,
        sock: socket.socket,
        accept: Callable[[Stream], Awaitable[None]],
        hello: Mapping[str, str] | None,
    ) -> None:
        self._sock = sock
        self._accept = accept
        self._hello = None if hello is None else dict(hello)
        self._mux = Mux(Side.HOST)
        self._streams: dict[int, Stream] = {}
        self._handlers: set[asyncio.Task[None]] = set()
        self._handler_of: dict[int, asyncio.Task[None]] = {}
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._turns: deque[asyncio.Future[None]] = deque()
        self._to_send = asyncio.Event()
        self._kept: list[bytes] | None = None
        """Frames that wait while the guest stands still; None while they need not."""
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.wanted = False
        """Something has waited for the guest since it was held back: a stream, bytes, an answer's end."""
        self.on_wanted: Callable[[], None] | None = None
        """Called each time."""
        self._heard = asyncio.get_running_loop().time()
        self._greeting: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._over: ChannelBroken | None = None

    async def run(self) -> None:
        """Serves the channel until the guest is gone. ChannelBroken when it broke the protocol.

        Cancelling it ends the channel. The socket is closed in any case, and every stream is over.
        """
        if self._hello is None:
            self._put(self._mux.hello((), RESYNC))
        sending = asyncio.create_task(self._send())
        why = "the sandbox's channel was closed"
        try:
            await self._receive()
        except Violation as error:
            why = f"the sandbox broke the guest protocol ({error})"
            raise ChannelBroken(why) from error
        except OSError as error:
            why = f"the sandbox's channel failed ({error.strerror})"
        finally:
            sending.cancel()
            self._finish(ChannelBroken(why))
            self._sock.close()
            await asyncio.gather(sending, *self._handlers, return_exceptions=True)

    async def ready(self, timeout: float) -> Hello:  # noqa: ASYNC109 - part of the sentence that it raises
        """The guest's HELLO; ChannelBroken when there is none within `timeout` seconds."""
        try:
            return await asyncio.wait_for(asyncio.shield(self._greeting), timeout)
        except TimeoutError as error:
            raise ChannelBroken(f"the sandbox's agent did not report within {timeout:g} s") from error

    async def open(self, kind: str, fields: Iterable[tuple[str, str]]) -> Stream:
        """A new stream to the guest. ValueError when `fields` are too long; ChannelBroken when it is over."""
        fields = tuple(fields)
        await self._turn()
        while self._kept is not None and self._over is None:  # numbers are given in the order of sending
            if kind != "control":  # what keeps it in order wants nothing of it
                self._wake()
            await self._flowing.wait()
            await self._turn()  # ChannelBroken, if that is why
        return self._open(kind, fields)

    def _open(self, kind: str, fields: Fields) -> Stream:
        number, frames = self._mux.open(kind, fields)
        stream = self._streams[number] = Stream(self, number, kind, fields)
        self._send_soon(frames)
        return stream

    # --------------------------------------------------------------------------------- standing still

    def hold_back(self) -> None:
        """From now on nothing is sent, and no stream opened, but by `order`; until `go_on`."""
        if self._kept is None:
            self._kept = []
            self.wanted = False
            self._flowing.clear()

    def order(self, op: str, fields: Iterable[tuple[str, str]] = ()) -> Stream:
        """A control stream, ahead of whatever is held back."""
        if self._over is not None:
            raise self._over
        return self._open("control", (("op", op), *fields))

    def go_on(self) -> None:
        """What was held back leaves."""
        kept, self._kept = self._kept, None
        for frame in kept or ():
            self._unsent_bytes -= len(frame)
            self._send_soon(frame)
        self._flowing.set()

    @property
    def held(self) -> int:
        """Connections of the guest that may still bring it something."""
        return sum(not (each.number % 2 or each.told_all) for each in self._streams.values())

    def silent_seconds(self) -> float:
        """Since the guest last said anything by itself. Its answers to our orders do not count: one that is
        saved every minute is not busy for that."""
        return asyncio.get_running_loop().time() - self._heard

    def _wake(self) -> None:
        if self._kept is not None:
            self.wanted = True
            if self.on_wanted is not None:
                self.on_wanted()

    # ------------------------------------------------------------------------------------ receiving

    async def _receive(self) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self._sock, READ_SIZE):
            for event in self._mux.receive(data):
                if not (isinstance(event, Greeted) or event.stream % 2):  # on a stream of its own
                    self._heard = loop.time()
                self._take(event)
            if self._unsent_bytes > MAX_UNSENT:
                raise Violation(Rule.NOT_READING, f"{self._unsent_bytes} bytes wait to be read")

    def _take(self, event: Event) -> None:
        match event:
            case Greeted(fields):
                if self._hello is not None:
                    self._put(self._mux.hello((fresh() | self._hello).items()))
                if not self._greeting.done():
                    self._greeting.set_result(Hello(first(fields, "agent"), fields))
            case Opened(number, kind, fields):
                self._opened(Stream(self, number, kind, fields))
            case Data(number, data, flags):
                if stream := self._streams.get(number):
                    stream._receive(Chunk(data, flags))
            case Noted(number, fields):
                if stream := self._streams.get(number):
                    stream._receive(Note(fields))
            case Credited(number):
                if stream := self._streams.get(number):
                    stream._changed.set()
            case Ended(number):
                if stream := self._streams.get(number):
                    stream._finish(None)
                    self._forget_if_over(stream)
            case WasReset(number, reason, message):
                if stream := self._streams.get(number):
                    stream._finish(StreamReset(reason, message))
                    self._forget_if_over(stream)
                    if handler := self._handler_of.get(number):
                        handler.cancel()

    def _opened(self, stream: Stream) -> None:
        # Handlers, not streams, are what opening and dropping in a loop would pile up (CVE-2023-44487).
        if len(self._handlers) >= MAX_GUEST_STREAMS:
            self._put(self._mux.reset(stream.number, "busy", "too many connections at once"))
            return
        self._streams[stream.number] = stream
        handler = asyncio.create_task(self._handle(stream))
        self._handlers.add(handler)
        self._handler_of[stream.number] = handler
        handler.add_done_callback(partial(self._handled, stream.number))

    def _handled(self, number: int, handler: asyncio.Task[None]) -> None:
        # Not in the task itself: one that is cancelled before its first step (OPEN and RESET in one piece)
        # runs none of it, and 512 that were never forgotten would be all that a guest gets.
        self._handlers.discard(handler)
        self._handler_of.pop(number, None)

    async def _handle(self, stream: Stream) -> None:
        try:
            await self._accept(stream)
        except (StreamReset, ChannelBroken):
            pass  # the guest went away: nobody is left to be told
        except Exception as error:  # noqa: BLE001 - one stream's failure is not its neighbours'
            # Only the class: the text may hold what the sandbox or an upstream sent.
            _log.error(
                "a sandbox's stream failed", extra={"kind": stream.kind, "error": type(error).__name__}
            )
        finally:
            stream.reset("closed")

    def _forget_if_over(self, stream: Stream) -> None:
        if stream.is_over:
            self._streams.pop(stream.number, None)

    def _finish(self, why: ChannelBroken) -> None:
        self._over = why
        for stream in self._streams.values():
            stream._finish(why)
        self._streams.clear()
        for handler in self._handlers:
            handler.cancel()
        if not self._greeting.done():
            self._greeting.set_exception(why)
            self._greeting.exception()  # nobody need have asked
        for turn in self._turns:
            if not turn.done():
                turn.set_result(None)
        self._flowing.set()

    # -------------------------------------------------------------------------------------- sending

    async def _turn(self) -> None:
        """Waits until this sender may put one frame; in the order of asking, so no stream starves another."""
        if self._unsent_bytes >= SEND_AHEAD or self._turns:
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

    def _give_turns(self) -> None:
        if self._unsent_bytes < SEND_AHEAD:
            for turn in self._turns:
                if not turn.done():
                    turn.set_result(None)
                    return

    def _put(self, frame: bytes) -> None:
        if not frame or self._over is not None:
            return
        if self._kept is not None:
            self._unsent_bytes += len(frame)  # whoever has more to send waits for these, too
            self._kept.append(frame)
        else:
            self._send_soon(frame)

    def _send_soon(self, frame: bytes) -> None:
        self._unsent_bytes += len(frame)
        self._unsent.append(frame)
        self._to_send.set()

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # a guest that is gone is noticed by whoever receives
            while True:
                while self._unsent:
                    frames = b"".join(self._unsent)
                    self._unsent.clear()
                    await loop.sock_sendall(self._sock, frames)
                    self._unsent_bytes -= len(frames)
                    self._give_turns()
                self._to_send.clear()
                await self._to_send.wait()
