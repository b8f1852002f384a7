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
from typing import Self

from coatcheck.launcher.frames import STDERR, WINDOW, Fields, Rule, Violation, first
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
    cost,
)

READ_SIZE = 256 * 1024
"""Bytes taken from the channel at once."""
SEND_AHEAD = 128 * 1024
"""Bytes that wait for the socket before senders wait: enough to keep it busy, few enough that a new stream's
first frame leaves soon."""
MAX_UNSENT = 4 * 1024 * 1024
"""Bytes that wait for the socket in all. Only a guest that talks and does not listen gets there."""
GIVE_BACK = WINDOW // 4
"""Credit that is collected before it is given back: a WINDOW for each chunk would be half of all frames."""
MAX_UNREAD_NOTES = 16
"""An honest agent sends one for each stream."""
ENTROPY_BYTES = 64

_log = logging.getLogger("coatcheck.launcher.channel")


class ChannelBroken(Exception):
    """The channel is over: the guest ended, or broke a rule of the protocol. The text says which."""


class StreamReset(Exception):
    """The guest dropped this stream. `reason` is a word of the protocol, `message` is for people."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(f"{reason}: {message}" if message else reason)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of a stream, in order."""

    data: bytes
    flags: int = 0

    @property
    def stderr(self) -> bool:
        """Whether a command wrote them to standard error."""
        return bool(self.flags & STDERR)


@dataclass(frozen=True, slots=True)
class Note:
    """What the guest said beside the bytes; it stands in order with them."""

    fields: Fields

    def get(self, name: str, default: str = "") -> str:
        """The first value of `name`."""
        return first(self.fields, name, default)


@dataclass(frozen=True, slots=True)
class Hello:
    """What the guest's agent said of itself."""

    agent: str
    fields: Fields


class Stream:
    """One stream. As a context manager it is dropped (RESET `cancelled`) unless both sides ended it."""

    def __init__(self, channel: "Channel", number: int, kind: str, fields: Fields) -> None:
        self.number = number
        self.kind = kind
        self.fields = fields
        self._channel = channel
        self._queue: deque[Chunk | Note] = deque()
        self._notes = 0
        self._used = 0
        self._ended = False
        self._over: Exception | None = None
        self._changed = asyncio.Event()

    def get(self, name: str, default: str = "") -> str:
        """The first value of the OPEN's field `name`."""
        return first(self.fields, name, default)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.reset("cancelled")

    async def read(self) -> Chunk | Note | None:
        """What comes next; None after the guest's END. StreamReset, or ChannelBroken, when it came to that.

        What was received before the stream was dropped is read first.
        """
        while not self._queue:
            if self._ended:
                return None
            if self._over is not None:
                raise self._over
            self._changed.clear()
            await self._changed.wait()
        item = self._queue.popleft()
        if isinstance(item, Note):
            self._notes -= 1
        else:
            self._used += cost(len(item.data))
            if self._used >= GIVE_BACK:
                self._channel._put(self._channel._mux.consumed(self.number, self._used))
                self._used = 0
        return item

    async def write(self, data: bytes, flags: int = 0) -> None:
        """Sends all of `data`; returns when the last of it is on its way.

        StreamReset when the guest dropped the stream, ChannelBroken when the channel is over.
        """
        mux = self._channel._mux
        with memoryview(data) as view:
            at = 0
            while at < len(view):
                await self._channel._turn()
                if self._over is not None:
                    raise self._over
                if not mux.is_open(self.number):
                    raise StreamReset("closed")
                piece = bytes(view[at : at + mux.may_send(self.number)])
                if piece:
                    self._channel._put(mux.data(self.number, piece, flags))
                    at += len(piece)
                else:
                    self._changed.clear()
                    await self._changed.wait()

    async def note(self, fields: Iterable[tuple[str, str]]) -> None:
        """Sends fields beside the bytes. Nothing happens when the stream is over."""
        self._channel._put(self._channel._mux.note(self.number, fields))

    async def end(self) -> None:
        """Says that no more bytes follow; the other direction goes on."""
        self._channel._put(self._channel._mux.end(self.number))
        self._channel._forget_if_over(self)

    def reset(self, reason: str, message: str = "") -> None:
        """Drops the stream, unless it is over. Whoever reads or writes it gets StreamReset."""
        dropped = self._channel._mux.reset(self.number, reason, message)
        if dropped:
            self._channel._put(dropped)
            self._finish(StreamReset(reason, message))
        self._channel._forget_if_over(self)

    @property
    def is_over(self) -> bool:
        """Whether nothing goes either way any more; what was received can still be read."""
        return not self._channel._mux.is_open(self.number)

    def _receive(self, item: Chunk | Note) -> None:
        if isinstance(item, Note):
            self._notes += 1
            if self._notes > MAX_UNREAD_NOTES:
                raise Violation(Rule.TOO_MANY_NOTES, f"{self._notes} unread on {self.number}")
        self._queue.append(item)
        self._changed.set()

    def _finish(self, why: Exception | None) -> None:
        """The guest's END (None), a RESET, or the channel's end."""
        if why is None:
            self._ended = True
        elif self._over is None:
            self._over = why
        self._changed.set()


class Channel:
    """All streams of one guest. `accept` is run as a task for each stream that the guest opens.

    `hello`: what our HELLO says (`generation`, `hostname`, `identities`); `clock` and `entropy` are added
    when it is sent, so that they are fresh. A stream that `accept` leaves open when it returns is dropped.
    """

    def __init__(
        self, sock: socket.socket, accept: Callable[[Stream], Awaitable[None]], hello: Mapping[str, str]
    ) -> None:
        self._sock = sock
        self._accept = accept
        self._hello = dict(hello)
        self._mux = Mux(Side.HOST)
        self._streams: dict[int, Stream] = {}
        self._handlers: set[asyncio.Task[None]] = set()
        self._handler_of: dict[int, asyncio.Task[None]] = {}
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._turns: deque[asyncio.Future[None]] = deque()
        self._to_send = asyncio.Event()
        self._greeting: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._over: ChannelBroken | None = None

    async def run(self) -> None:
        """Serves the channel until the guest is gone. ChannelBroken when it broke the protocol.

        Cancelling it ends the channel. The socket is closed in any case, and every stream is over.
        """
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
        number, frames = self._mux.open(kind, fields)
        stream = self._streams[number] = Stream(self, number, kind, fields)
        self._put(frames)
        return stream

    # ------------------------------------------------------------------------------------ receiving

    async def _receive(self) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self._sock, READ_SIZE):
            for event in self._mux.receive(data):
                self._take(event)
            if self._unsent_bytes > MAX_UNSENT:
                raise Violation(Rule.NOT_READING, f"{self._unsent_bytes} bytes wait to be read")

    def _take(self, event: Event) -> None:
        match event:
            case Greeted(fields):
                fresh = {"clock": f"{time.time():.9f}", "entropy": secrets.token_hex(ENTROPY_BYTES)}
                self._put(self._mux.hello((fresh | self._hello).items()))
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
        if frame and self._over is None:
            self._unsent.append(frame)
            self._unsent_bytes += len(frame)
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
