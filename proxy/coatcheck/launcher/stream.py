"""In the supervisor: is one stream of a guest's channel as its user sees it: bytes and notes in order,
with flow control."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

from coatcheck.launcher.frames import STDERR, WINDOW, Fields, Rule, Violation, first
from coatcheck.launcher.mux import cost
from coatcheck.launcher.outbox import Outbox

GIVE_BACK = WINDOW // 4
"""Credit that is collected before it is given back: a WINDOW for each chunk would be half of all frames."""
MAX_UNREAD_NOTES = 16
"""An honest agent sends one for each stream."""


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


class Stream:
    """One stream. As a context manager it is dropped (RESET `cancelled`) unless both sides ended it."""

    def __init__(
        self, outbox: Outbox, forget: Callable[["Stream"], None], number: int, kind: str, fields: Fields
    ) -> None:
        """`forget`: its channel's, called when one direction is over."""
        self.number = number
        self.kind = kind
        self.fields = fields
        self._outbox = outbox
        self._forget = forget
        self._queue: deque[Chunk | Note] = deque()
        self._notes = 0
        self._used = 0
        self._ended = False
        self._over: Exception | None = None
        self._changed = asyncio.Event()
        self.told_all = False
        """We ended our direction."""
        self._awaits_answer = False
        """The guest said something after the last that it was told."""

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
                self._outbox.put(self._outbox.mux.consumed(self.number, self._used))
                self._used = 0
        return item

    async def write(self, data: bytes) -> None:
        """Sends all of `data`; returns when the last of it is on its way.

        StreamReset when the guest dropped the stream, ChannelBroken when the channel is over.
        """
        mux = self._outbox.mux
        with memoryview(data) as view:
            at = 0
            while at < len(view):
                await self._outbox.turn()
                if self._over is not None:
                    raise self._over
                if not mux.is_open(self.number):
                    raise StreamReset("closed")
                piece = bytes(view[at : at + mux.may_send(self.number)])
                if piece:
                    self._awaits_answer = False
                    self._outbox.put(mux.data(self.number, piece))
                    at += len(piece)
                self._outbox.wake()  # also where it has no room: it has not read what it was told before
                if not piece:
                    self._changed.clear()
                    await self._changed.wait()

    async def notes(self) -> list[Note]:
        """All that comes until the guest's END, of which the notes. StreamReset, ChannelBroken."""
        notes: list[Note] = []
        while (item := await self.read()) is not None:
            if isinstance(item, Note):
                notes.append(item)
        return notes

    async def over(self) -> None:
        """Until nothing goes either way any more. An agent that has done what it was told says RESET `done`
        last: the END before it does not tell that all it had to say has come. ChannelBroken."""
        while not self.is_over:
            if isinstance(self._over, ChannelBroken):
                raise self._over
            self._changed.clear()
            await self._changed.wait()

    async def note(self, fields: Iterable[tuple[str, str]]) -> None:
        """Sends fields beside the bytes. Nothing happens when the stream is over."""
        self._outbox.put(self._outbox.mux.note(self.number, fields))
        self._outbox.wake()

    async def end(self) -> None:
        """Says that no more bytes follow; the other direction goes on."""
        self.told_all = True
        self._outbox.put(self._outbox.mux.end(self.number))
        self._forget(self)
        self._no_answer_follows()

    def reset(self, reason: str, message: str = "") -> None:
        """Drops the stream, unless it is over. Its readers and writers get StreamReset."""
        dropped = self._outbox.mux.reset(self.number, reason, message)
        if dropped:
            self._outbox.put(dropped)
            self.finish(StreamReset(reason, message))
        self._forget(self)
        self._no_answer_follows()

    def _no_answer_follows(self) -> None:
        # A connection that is only kept open may go while the guest sleeps, and so may the caller of a
        # command.
        if self._awaits_answer and not self.number % 2:
            self._awaits_answer = False
            self._outbox.wake()

    @property
    def is_over(self) -> bool:
        """Whether nothing goes either way any more; what was received can still be read."""
        return not self._outbox.mux.is_open(self.number)

    def receive(self, item: Chunk | Note) -> None:
        """What the guest sent. Violation."""
        if isinstance(item, Note):
            self._notes += 1
            if self._notes > MAX_UNREAD_NOTES:
                raise Violation(Rule.TOO_MANY_NOTES, f"{self._notes} unread on {self.number}")
        else:
            self._awaits_answer = True
        self._queue.append(item)
        self._changed.set()

    def credited(self) -> None:
        """The guest takes more."""
        self._changed.set()

    def finish(self, why: Exception | None) -> None:
        """The guest's END (None), a RESET, or the channel's end."""
        if why is None:
            self._ended = True
        elif self._over is None:
            self._over = why
        self._changed.set()
