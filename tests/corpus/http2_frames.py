"""HTTP/2 as an attacker would write it: frames and header blocks that no library would send, both ways.

A frame is a mapping with one of these keys:
  headers: [[name, value], …]   encoded as it is; `end: false` keeps the stream open, `block: false` the block
  data: text                    `end: false` keeps the stream open
  trailers: [[name, value], …]
  continuation: text            the block goes on with these bytes
  frame: {type, flags, stream, payload}
  read: answer | nothing        (the sandbox's side only)
`stream` is 1 unless it is said; `times` repeats a frame.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary, proxy

import hpack

from tests.corpus.driver import PATIENCE, STEPS, Answer, Connection, Driver, connect
from tests.corpus.world import SERVERS, Arrival

MAGIC: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
END_STREAM, END_HEADERS = 1, 4
ACK = 1

type Fields = list[list[str]]
type Expand = Callable[[str], bytes]


def raw(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame; nothing is looked at."""
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def written(frame: Mapping[str, Any], encoder: hpack.Encoder, expand: Expand) -> bytes:
    """The bytes of one frame of a case."""
    stream, end = int(frame.get("stream", 1)), END_STREAM * bool(frame.get("end", True))
    match frame:
        case {"headers": fields} | {"trailers": fields}:
            block = encoder.encode([(expand(name), expand(value)) for name, value in fields])
            made = raw(HEADERS, end | END_HEADERS * bool(frame.get("block", True)), stream, block)
        case {"data": text}:
            made = raw(DATA, end, stream, expand(text))
        case {"continuation": text}:
            made = raw(CONTINUATION, END_HEADERS * bool(frame.get("block", True)), stream, expand(text))
        case {"frame": {"type": kind, "flags": flags, "stream": of, "payload": text}}:
            made = raw(int(kind), int(flags), int(of), expand(text))
        case _:
            raise ValueError(f"no such frame: {frame}")
    return made * int(frame.get("times", 1))


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, int, int, bytes]]:
    """(type, flags, stream, payload) until the connection ends."""
    while True:
        try:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3]))
        except (asyncio.IncompleteReadError, OSError):
            return
        yield head[3], head[4], int.from_bytes(head[5:]) & 0x7FFF_FFFF, payload


def text_of(fields: Any) -> bytes:
    """Header fields as lines, for what is looked for in them."""
    return b"".join(bytes(name) + b": " + bytes(value) + b"\r\n" for name, value in fields)


# --- the sandbox's side ---------------------------------------------------------------------------------


class Client:
    """What one HTTP/2 connection of a sandbox remembers."""

    def __init__(self, connection: Connection) -> None:
        self.connection: Connection = proxy(connection)
        self.encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()
        self._frames = frames(connection.reader)

    async def answer(self) -> None:
        """Until one stream has its answer; a reset, GOAWAY or end in its place is a cut."""
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await self._answer()
        except TimeoutError:
            self.connection.outcome.hung = True
            return
        if answer is None:
            self.connection.outcome.cut = True
        else:
            self.connection.outcome.answers.append(answer)

    async def _answer(self) -> Answer | None:
        headers: dict[int, list[tuple[str, str]]] = {}
        bodies: dict[int, bytes] = {}
        async for kind, flags, stream, payload in self._frames:
            if kind in (RST_STREAM, GOAWAY):
                return None
            if kind in (SETTINGS, PING) and not flags & ACK:
                await self.connection.send(raw(kind, ACK, 0, payload if kind == PING else b""))
            if kind == HEADERS:
                fields = self._decoder.decode(payload, raw=True)
                self.connection.outcome.seen += text_of(fields)
                pairs = [
                    (bytes(name).decode("latin-1"), bytes(value).decode("latin-1")) for name, value in fields
                ]
                headers.setdefault(stream, []).extend(pairs)
            if kind == DATA:
                self.connection.outcome.seen += payload
                bodies[stream] = bodies.get(stream, b"") + payload
            if kind in (HEADERS, DATA) and flags & END_STREAM:
                status = int(dict(headers[stream])[":status"])
                return Answer(status, tuple(headers[stream]), bodies.get(stream, b""), True)
        return None


_clients: Final[WeakKeyDictionary[Connection, Client]] = WeakKeyDictionary()


async def _h2(driver: Driver, asked: list[Mapping[str, Any]], step: Mapping[str, Any]) -> None:
    """On a connection of its own to `host`, frames; then, unless the last one reads, one answer."""
    connection = await driver.connection(step.get("on", "main"))
    client = _clients.get(connection)
    if client is None:
        host = str(step.get("host", "api.vendor.example"))
        if not await connect(driver, connection, f"{host}:443"):
            return
        await connection.tls(host, ["h2"])
        if connection.ended:
            return
        client = _clients[connection] = Client(connection)
        if step.get("preface", True):
            await connection.send(MAGIC + raw(SETTINGS, 0, 0, b""))
    sent = b""
    for frame in asked:
        if "read" not in frame:
            sent += written(frame, client.encoder, driver.expand)
            continue
        await connection.send(sent)
        sent = b""
        if frame["read"] != "nothing":
            await client.answer()
    if sent or not asked:
        await connection.send(sent)
        await client.answer()


STEPS["h2"] = _h2


# --- the origin's side ----------------------------------------------------------------------------------


async def serve(
    arrival: Arrival,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    script: list[dict[str, Any]],
    expand: Expand,
) -> None:
    """Answers each stream, once its request has ended, with the script's frames on that stream."""
    await reader.readexactly(len(MAGIC))
    writer.write(raw(SETTINGS, 0, 0, b""))
    encoder, decoder = hpack.Encoder(), hpack.Decoder()
    async for kind, flags, stream, payload in frames(reader):
        if kind == SETTINGS and not flags & ACK:
            writer.write(raw(SETTINGS, ACK, 0, b""))
        if kind == HEADERS:
            head = text_of(decoder.decode(payload, raw=True))
            arrival.data += head
            arrival.heads.append(head)
        if kind == DATA:
            arrival.data += payload
        if kind in (HEADERS, DATA) and flags & END_STREAM:
            for frame in script or DEFAULT:
                writer.write(written({"stream": stream, **frame}, encoder, expand))
        await writer.drain()


DEFAULT: Final[list[dict[str, Any]]] = [
    {"headers": [[":status", "200"], ["content-type", "application/json"]], "end": False},
    {"data": '{"ok":true}'},
]
SERVERS["h2"] = serve
