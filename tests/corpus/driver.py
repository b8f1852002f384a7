"""The sandbox's part: a case's steps, on raw connections to the proxy, and all that came back."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from tests.corpus.proxies import Inside, UnderTest

PATIENCE = 5.0
"""Seconds for an answer; what takes longer hangs."""
MOST: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """One message that came back."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    whole: bool
    """Whether it came to the end that its head announced."""

    def get(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


@dataclass(slots=True)
class Outcome:
    """What the sandbox saw."""

    answers: list[Answer] = field(default_factory=list)
    seen: bytearray = field(default_factory=bytearray)
    cut: bool = False
    """A connection ended where an answer was due."""
    hung: bool = False
    """Nothing came within PATIENCE."""
    tls_refused: bool = False
    printed: list[str] = field(default_factory=list)
    """What clients wrote."""


class Connection:
    """One connection of a sandbox to its proxy."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inside: Inside, outcome: Outcome
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.inside = inside
        self.outcome = outcome
        self.ended = False
        self.tunnel = False
        self._method = "GET"

    async def send(self, data: bytes) -> None:
        self._method = data.partition(b" ")[0].decode("latin-1")[:20]
        try:
            self.writer.write(data)
            await self.writer.drain()
        except (ConnectionError, ssl.SSLError):
            self.ended = True

    async def tls(self, sni: str | None, alpn: list[str]) -> None:
        context = ssl.create_default_context(cafile=str(self.inside.ca))
        context.check_hostname = sni is not None
        if alpn:
            context.set_alpn_protocols(alpn)
        try:
            await self.writer.start_tls(context, server_hostname=sni, ssl_handshake_timeout=PATIENCE)
        except (OSError, ssl.SSLError, asyncio.IncompleteReadError):
            self.outcome.tls_refused = self.ended = True

    async def answer(self) -> Answer | None:
        """The next final answer; interim ones are only written down."""
        try:
            async with asyncio.timeout(PATIENCE):
                while (answer := await self._message()) is not None:
                    if answer.status >= 200 or answer.status == 101:
                        self.outcome.answers.append(answer)
                        return answer
        except TimeoutError:
            self.outcome.hung = True
            return None
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError) as error:
            self.outcome.seen += getattr(error, "partial", b"")
        self.ended = self.outcome.cut = True
        return None

    async def rest(self) -> None:
        """Everything until the connection ends."""
        try:
            async with asyncio.timeout(PATIENCE):
                while data := await self.reader.read(65_536):
                    self.outcome.seen += data
            self.ended = True
        except TimeoutError:
            self.outcome.hung = True
        except (ConnectionError, ssl.SSLError):
            self.ended = self.outcome.cut = True

    async def _message(self) -> Answer | None:
        head = await self.reader.readuntil(b"\r\n\r\n")
        self.outcome.seen += head
        line, *fields = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        words = line.split(" ")
        if not words[0].startswith("HTTP/") or len(words) < 2 or not words[1].isdigit():
            return None
        headers = tuple(
            (k.strip().lower(), v.strip()) for k, _, v in (each.partition(":") for each in fields)
        )
        status = int(words[1])
        body, whole = b"", True
        bodiless = self._method == "HEAD" or (self._method == "CONNECT" and status < 300)
        if status >= 200 and status not in (204, 304) and not bodiless:
            body, whole = await self._body(dict(headers))
        return Answer(status, headers, body, whole)

    async def _body(self, headers: Mapping[str, str]) -> tuple[bytes, bool]:
        start = len(self.outcome.seen)
        whole = True
        try:
            if "chunked" in headers.get("transfer-encoding", "").lower():
                await self._chunks()
            elif "content-length" in headers:
                await self._exactly(int(headers["content-length"]))
            else:
                while data := await self.reader.read(65_536):
                    self._saw(data)
        except asyncio.IncompleteReadError as error:
            self._saw(error.partial)
            self.ended, whole = True, False
        except (ConnectionError, ssl.SSLError):
            self.ended, whole = True, False
        return bytes(self.outcome.seen[start:]), whole

    async def _chunks(self) -> None:
        while True:
            line = await self.reader.readuntil(b"\r\n")
            self._saw(line)
            size = int(line.split(b";")[0], 16)
            if size == 0:
                while line != b"\r\n":
                    line = await self.reader.readuntil(b"\r\n")
                    self._saw(line)
                return
            await self._exactly(size + 2)

    async def _exactly(self, count: int) -> None:
        while count:
            data = await self.reader.readexactly(min(count, 65_536))
            self._saw(data)
            count -= len(data)

    def _saw(self, data: bytes) -> None:
        self.outcome.seen += data
        if len(self.outcome.seen) > MOST:
            raise ConnectionError("more than any case asks for")


class Driver:
    """Runs a case's steps. `expand`: text of a case -> bytes. Further kinds of steps: `STEPS`."""

    def __init__(self, inside: Inside, expand: Callable[[str], bytes], mode: str, proxy: UnderTest) -> None:
        self.inside = inside
        self.expand = expand
        self.mode = mode
        self.proxy = proxy
        """For steps of our operator; a sandbox has no part in it."""
        self.outcome = Outcome()
        self.connections: dict[str, Connection] = {}
        self.undo: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        """What must be done once the case is over, by what it is about."""

    async def run(self, steps: list[dict[str, Any]]) -> Outcome:
        """All steps; then, unless the last one read, one answer."""
        try:
            await self.steps(steps)
            kinds = set(steps[-1])
            if kinds & {"bytes", "half_close", "repeat"} and (last := self._last()) is not None:
                await last.answer()
        finally:
            for each in self.connections.values():
                each.writer.transport.abort()
            for _, restore in reversed(self.undo):
                await restore()
        return self.outcome

    async def steps(self, steps: list[dict[str, Any]]) -> None:
        for step in steps:
            kind = next(iter(step))
            handler = STEPS.get(kind)
            if handler is None:
                raise ValueError(f"no such step: {kind}")
            await handler(self, step[kind], step)

    async def connection(self, name: str = "main") -> Connection:
        """The connection of that name, opened if there is none yet."""
        if name not in self.connections:
            await self.dial(name, *self.inside.address)
        return self.connections[name]

    async def dial(self, name: str, host: str, port: int) -> Connection:
        """A new connection of that name, as the mode makes them."""
        open_connection = DIALS.get(self.mode, _dial)
        reader, writer = await open_connection(self, host, port)
        made = self.connections[name] = Connection(reader, writer, self.inside, self.outcome)
        return made

    def _last(self) -> Connection | None:
        return next(reversed(self.connections.values()), None)


async def _open(driver: Driver, _: Any, step: Mapping[str, Any]) -> None:
    await driver.connection(step.get("on", "main"))


async def _connect(driver: Driver, target: str, step: Mapping[str, Any]) -> None:
    connection = await driver.connection(step.get("on", "main"))
    await connect(driver, connection, target)


async def connect(driver: Driver, connection: Connection, target: str, host: str | None = None) -> bool:
    """Open a tunnel; False when it was refused. Its 200 is not an answer of the case."""
    name = host or target
    await connection.send(
        b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (driver.expand(target), driver.expand(name))
    )
    answer = await connection.answer()
    if answer is None or answer.status != 200:
        return False
    driver.outcome.answers.remove(answer)
    return True


async def _tls(driver: Driver, asked: Mapping[str, Any], step: Mapping[str, Any]) -> None:
    connection = await driver.connection(step.get("on", "main"))
    await connection.tls(asked.get("sni"), asked.get("alpn", ["http/1.1"]))


async def _tunnel(driver: Driver, host: str, step: Mapping[str, Any]) -> None:
    """CONNECT and TLS to `host` with its own name, as every client does it."""
    connection = await driver.connection(step.get("on", "main"))
    if await connect(driver, connection, f"{host}:443"):
        connection.tunnel = True
        await connection.tls(host, ["http/1.1"])


async def _bytes(driver: Driver, text: str, step: Mapping[str, Any]) -> None:
    connection = await driver.connection(step.get("on", "main"))
    if not connection.ended:
        await connection.send(driver.expand(text) * int(step.get("times", 1)))


async def _read(driver: Driver, what: str, step: Mapping[str, Any]) -> None:
    connection = await driver.connection(step.get("on", "main"))
    if what == "answer":
        await connection.answer()
    elif what == "end":
        await connection.rest()
    else:
        raise ValueError(f"read answer or end, not {what}")


async def _pause(_: Driver, seconds: float, __: Mapping[str, Any]) -> None:
    await asyncio.sleep(seconds)


async def _half_close(driver: Driver, _: Any, step: Mapping[str, Any]) -> None:
    connection = await driver.connection(step.get("on", "main"))
    connection.writer.write_eof()


async def _close(driver: Driver, how: Any, step: Mapping[str, Any]) -> None:
    """By a reset, or `cleanly`: what was sent before arrives."""
    connection = await driver.connection(step.get("on", "main"))
    connection.ended = True
    if how != "cleanly":
        connection.writer.transport.abort()
        return
    connection.writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(PATIENCE):
            await connection.writer.wait_closed()


async def _repeat(driver: Driver, asked: Mapping[str, Any], _: Mapping[str, Any]) -> None:
    for number in range(int(asked["times"])):
        await driver.steps([{**each, "on": f"{number}"} for each in asked["steps"]])


async def _request(driver: Driver, asked: Mapping[str, Any], step: Mapping[str, Any]) -> None:
    """A whole request in the mode's own way: what a well-behaved client would send, but for what is said."""
    if driver.mode in REQUESTS:
        await REQUESTS[driver.mode](driver, asked, step)
        return
    connection = await driver.connection(step.get("on", "main"))
    secure = asked.get("scheme", "https") == "https"
    host = str(asked["host"])
    port = int(asked.get("port", 443 if secure else 80))
    target = str(asked.get("path", "/"))
    if secure and not connection.tunnel:
        if not await connect(driver, connection, str(asked.get("connect", f"{host}:{port}"))):
            return
        connection.tunnel = True
        await connection.tls(asked.get("sni", host), ["http/1.1"])
        if connection.ended:
            return
    elif not secure:
        target = f"http://{asked.get('authority', host if port == 80 else f'{host}:{port}')}{target}"
    await connection.send(request_bytes(asked, target, driver.expand))
    await connection.answer()


def request_bytes(asked: Mapping[str, Any], target: str, expand: Callable[[str], bytes]) -> bytes:
    """HTTP/1.1: Host comes first unless `headers` names it or is null there; a body has its length."""
    headers = asked.get("headers", {})
    pairs = list(headers.items()) if isinstance(headers, Mapping) else [tuple(each) for each in headers]
    names = {str(name).lower() for name, _ in pairs}
    body = expand(str(asked.get("body", "")))
    if "host" not in names:
        pairs.insert(0, ("Host", asked["host"]))
    if body and not names & {"content-length", "transfer-encoding"}:
        pairs.append(("Content-Length", str(len(body))))
    lines = [f"{asked.get('method', 'GET')} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in pairs if value is not None]
    return expand("\r\n".join(lines) + "\r\n\r\n") + body


async def _dial(_: Driver, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(host, port, limit=1 << 20)


DIALS: Final[dict[str, Any]] = {}
"""Mode -> what opens a connection in it, if not the runner itself."""
REQUESTS: Final[dict[str, Any]] = {}
"""Mode -> what sends a whole request in it; modules of further modes add theirs."""
STEPS: Final[dict[str, Any]] = {
    "open": _open,
    "connect": _connect,
    "tls": _tls,
    "tunnel": _tunnel,
    "bytes": _bytes,
    "read": _read,
    "pause": _pause,
    "half_close": _half_close,
    "close": _close,
    "repeat": _repeat,
    "request": _request,
}
"""Kind -> what does it; modules with more kinds add theirs (runner.py imports them)."""
