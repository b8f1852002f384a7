"""In the supervisor: is the host's end of a guest's channel, in asyncio: streams with flow control in both
directions.

Nothing here waits for one stream at another's cost: received bytes go to their stream's queue, bounded by the
credit that we gave; sent bytes take turns, one frame a turn.
"""

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial

from coatcheck.launcher.frames import RESYNC, Fields, Rule, Violation
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
from coatcheck.launcher.outbox import Outbox
from coatcheck.launcher.stream import ChannelBroken, Chunk, Note, Stream, StreamReset

__all__ = ("Channel", "ChannelBroken", "Chunk", "Note", "Stream", "StreamReset", "fresh")

READ_SIZE = 256 * 1024
"""Bytes taken from the channel at once."""
MAX_UNSENT = 4 * 1024 * 1024
"""Bytes that wait for the socket in all. Only a guest that talks and does not listen gets there."""
ENTROPY_BYTES = 64

_log = logging.getLogger(__name__)


def fresh() -> dict[str, str]:
    """`clock` and `entropy` of now: a guest that is given what was prepared earlier could be a twin."""
    return {"clock": f"{time.time():.9f}", "entropy": secrets.token_hex(ENTROPY_BYTES)}


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
        self.sock = sock
        self._accept = accept
        self._hello = None if hello is None else dict(hello)
        self.mux = Mux(Side.HOST)
        self.streams: dict[int, Stream] = {}
        self.handlers: set[asyncio.Task[None]] = set()
        self._handler_of: dict[int, asyncio.Task[None]] = {}
        self.outbox = Outbox(self.mux)
        self._heard = asyncio.get_running_loop().time()
        self._greeting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over: ChannelBroken | None = None

    async def run(self) -> None:
        """Serves the channel until the guest is gone. ChannelBroken when it broke the protocol.

        Cancelling it ends the channel. The socket is closed in any case, and every stream is over.
        """
        if self._hello is None:
            self.outbox.put(self.mux.hello((), RESYNC))
        sending = asyncio.create_task(self.outbox.send(self.sock))
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
            self.sock.close()
            await asyncio.gather(sending, *self.handlers, return_exceptions=True)

    async def ready(self, timeout: float) -> None:  # noqa: ASYNC109 - part of the sentence that it raises
        """Until the guest said HELLO; ChannelBroken when it does not within `timeout` seconds."""
        try:
            await asyncio.wait_for(asyncio.shield(self._greeting), timeout)
        except TimeoutError as error:
            raise ChannelBroken(f"the sandbox's agent did not report within {timeout:g} s") from error

    async def open(self, kind: str, fields: Iterable[tuple[str, str]]) -> Stream:
        """A new stream to the guest. ValueError when `fields` are too long; ChannelBroken when it is over."""
        fields = tuple(fields)
        # What keeps the guest in order wants nothing of it.
        await self.outbox.turn_to_open(wakes=kind != "control")
        return self._open(kind, fields)

    def _open(self, kind: str, fields: Fields) -> Stream:
        number, frames = self.mux.open(kind, fields)
        stream = self.streams[number] = Stream(self.outbox, self._forget_if_over, number, kind, fields)
        self.outbox.send_soon(frames)
        return stream

    # --------------------------------------------------------------------------------- standing still

    def hold_back(self) -> None:
        """From now on nothing is sent, and no stream opened, but by `order`; until `go_on`."""
        self.outbox.hold_back()

    def order(self, op: str, fields: Iterable[tuple[str, str]] = ()) -> Stream:
        """A control stream, ahead of whatever is held back."""
        if self._over is not None:
            raise self._over
        return self._open("control", (("op", op), *fields))

    def go_on(self) -> None:
        """What was held back leaves."""
        self.outbox.go_on()

    @property
    def wanted(self) -> bool:
        """Something has waited for the guest since it was held back: a stream, bytes, an answer's end."""
        return self.outbox.wanted

    def when_wanted(self, call: Callable[[], None] | None) -> None:
        """`call` each time that something waits for a guest that is held back."""
        self.outbox.on_wanted = call

    @property
    def held(self) -> int:
        """Connections of the guest that may still bring it something."""
        return sum(not (each.number % 2 or each.told_all) for each in self.streams.values())

    def silent_seconds(self) -> float:
        """Since the guest last said anything by itself. Its answers to our orders do not count: one that is
        saved every minute is not busy for that."""
        return asyncio.get_running_loop().time() - self._heard

    # ------------------------------------------------------------------------------------ receiving

    async def _receive(self) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self.sock, READ_SIZE):
            for event in self.mux.receive(data):
                if not (isinstance(event, Greeted) or event.stream % 2):  # on a stream of its own
                    self._heard = loop.time()
                self._take(event)
            if self.outbox.waiting > MAX_UNSENT:
                raise Violation(Rule.NOT_READING, f"{self.outbox.waiting} bytes wait to be read")

    def _take(self, event: Event) -> None:
        match event:
            case Greeted(fields):
                if self._hello is not None:
                    self.outbox.put(self.mux.hello((fresh() | self._hello).items()))
                if not self._greeting.done():
                    self._greeting.set_result(None)
            case Opened(number, kind, fields):
                self._opened(Stream(self.outbox, self._forget_if_over, number, kind, fields))
            case Data(number, data, flags):
                if stream := self.streams.get(number):
                    stream.receive(Chunk(data, flags))
            case Noted(number, fields):
                if stream := self.streams.get(number):
                    stream.receive(Note(fields))
            case Credited(number):
                if stream := self.streams.get(number):
                    stream.credited()
            case Ended(number):
                if stream := self.streams.get(number):
                    stream.finish(None)
                    self._forget_if_over(stream)
            case WasReset(number, reason, message):
                if stream := self.streams.get(number):
                    stream.finish(StreamReset(reason, message))
                    self._forget_if_over(stream)
                    if handler := self._handler_of.get(number):
                        handler.cancel()

    def _opened(self, stream: Stream) -> None:
        # Handlers, not streams, are what opening and dropping in a loop would pile up (CVE-2023-44487).
        if len(self.handlers) >= MAX_GUEST_STREAMS:
            self.outbox.put(self.mux.reset(stream.number, "busy", "too many connections at once"))
            return
        self.streams[stream.number] = stream
        handler = asyncio.create_task(self._handle(stream))
        self.handlers.add(handler)
        self._handler_of[stream.number] = handler
        handler.add_done_callback(partial(self._handled, stream.number))

    def _handled(self, number: int, handler: asyncio.Task[None]) -> None:
        # Not in the task itself: one that is cancelled before its first step (OPEN and RESET in one piece)
        # runs none of it, and 512 that were never forgotten would be all that a guest gets.
        self.handlers.discard(handler)
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
            self.streams.pop(stream.number, None)

    def _finish(self, why: ChannelBroken) -> None:
        self._over = why
        self.outbox.close(why)
        for stream in self.streams.values():
            stream.finish(why)
        self.streams.clear()
        for handler in self.handlers:
            handler.cancel()
        if not self._greeting.done():
            self._greeting.set_exception(why)
            self._greeting.exception()  # nobody need have asked
