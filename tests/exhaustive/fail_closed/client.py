"""What a client did and saw: one connection, read as it comes."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import override

import h2.config
import h2.connection
import h2.events

from coatcheck.decision.denial import EXPLANATIONS, Reason
from tests.exhaustive.fail_closed.world import World
from tests.planes.wire import Wire


@dataclass
class Seen:
    """The answer to the last thing that was asked, as far as it came."""

    asked: str = "nothing"
    """`connect`, `tls`, `request`: what the client did last."""
    data: bytearray = field(default_factory=bytearray)
    end: str = ""
    """`eof` or `reset`, once the connection is over."""

    @property
    def head(self) -> str:
        return self.data.partition(b"\r\n\r\n")[0].decode("latin-1") if b"\r\n\r\n" in self.data else ""

    @property
    def status(self) -> int:
        return int(self.head.split()[1]) if self.head else 0

    def header(self, name: str) -> str:
        fields = (line.partition(":") for line in self.head.split("\r\n")[1:])
        return next((value.strip() for key, _, value in fields if key.lower() == name), "")

    @property
    def whole(self) -> bool:
        """The answer came to its clean end."""
        body = self.data.partition(b"\r\n\r\n")[2]
        if not self.head:
            return False
        if self.header("transfer-encoding") == "chunked":
            return body.endswith(b"0\r\n\r\n")
        length = self.header("content-length")
        return len(body) == int(length) if length else self.status in (101, 200)

    @property
    def refusal(self) -> str:
        """The reason of a documented refusal that came whole, with its status; empty for anything else."""
        reason = self.header("coatcheck-reason")
        known = (
            reason in {each.value for each in Reason} and EXPLANATIONS[Reason(reason)].status == self.status
        )
        return reason if known and self.whole else ""


class WebSocketSeen(Seen):
    """After the upgrade the end is the peer's Close, and not the connection's."""

    @property
    @override
    def whole(self) -> bool:
        if self.status != 101:
            return super().whole
        return b"\x88\x02\x03\xe8" in self.data.partition(b"\r\n\r\n")[2]


@dataclass
class RpcSeen(Seen):
    """HTTP/2: the stream's own end, whatever becomes of the connection."""

    fields: dict[str, str] = field(default_factory=dict)
    ended: bool = False

    @property
    @override
    def status(self) -> int:
        return int(self.fields[":status"]) if self.fields else super().status

    @override
    def header(self, name: str) -> str:
        return self.fields.get(name, "") if self.fields else super().header(name)

    @property
    @override
    def whole(self) -> bool:
        return self.ended or super().whole


class Client:
    """A connection whose reading goes on beside."""

    def __init__(self, world: World, raw: Wire, seen: Seen | None = None) -> None:
        self.world, self.raw = world, raw
        self.seen = seen or Seen()
        self._reading: asyncio.Task[None] | None = None

    async def ask(self, what: str, data: bytes) -> None:
        self.seen.asked = what
        self.seen.data.clear()
        await self.send(data)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())

    async def send(self, data: bytes) -> None:
        try:
            await self.raw.send(data)
        except (OSError, ssl.SSLError):
            pass  # the reader sees it, too

    async def goes_on(self, condition: Callable[[], bool]) -> bool:
        """Waits for `condition`; False when it is over instead: refused, or broken off."""

        def over() -> bool:
            return bool(self.seen.end or self.seen.refusal)

        await self.world.until(lambda: condition() or over())
        return not over()

    async def start_tls(self, name: str, alpn: tuple[str, ...] = (), trust: Path | None = None) -> bool:
        self.seen.asked = "tls"
        self.seen.data.clear()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
            self._reading = None
        try:
            await self.raw.start_tls(trust or self.world.daemon.trust.ca, name, alpn)
        except (OSError, ssl.SSLError):
            self.seen.end = "reset"
            return False
        return True

    async def _read(self) -> None:
        try:
            while data := await self.raw.reader.read(65_536):
                self._take(data)
                self.world.answered = self.seen.asked == "request" and self.seen.whole
                self.world.moved.set()
            self.seen.end = "eof"
        except (OSError, ssl.SSLError):
            self.seen.end = "reset"
        self.world.moved.set()

    def _take(self, data: bytes) -> None:
        self.seen.data += data


class RpcClient(Client):
    """HTTP/2, one stream."""

    def __init__(self, world: World, raw: Wire) -> None:
        super().__init__(world, raw, RpcSeen())
        self._h2: h2.connection.H2Connection | None = None
        self._stream = 0

    async def begin(self) -> None:
        """The head, and the first of the body."""
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._h2.initiate_connection()
        self._stream = self._h2.get_next_available_stream_id()
        fields = [(":method", "PUT"), (":scheme", "https"), (":authority", "api.github.com"), (":path", "/")]
        handle = ("authorization", f"Bearer {self.world.sandbox.handles['github']}")
        self._h2.send_headers(self._stream, [*fields, handle])
        self._h2.send_data(self._stream, b"one")
        await self.ask("request", self._h2.data_to_send())

    async def upload(self, data: bytes, *, end: bool = False) -> None:
        assert self._h2 is not None
        self._h2.send_data(self._stream, data, end_stream=end)
        await self.send(self._h2.data_to_send())

    @override
    def _take(self, data: bytes) -> None:
        if self._h2 is None:
            super()._take(data)
            return
        seen = self.seen
        assert isinstance(seen, RpcSeen)
        for event in self._h2.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived):
                seen.fields = {str(name): str(value) for name, value in event.headers}
            elif isinstance(event, h2.events.DataReceived):
                seen.data += event.data
            elif isinstance(event, h2.events.StreamEnded):
                seen.ended = True
            elif isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated):
                seen.end = seen.end or "reset"
        self.raw.writer.write(self._h2.data_to_send())
