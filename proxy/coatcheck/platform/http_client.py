"""HTTP to the servers that an operator named: Vault, an OpenID provider, a collector, a webhook's receiver.

An exchange ends with its deadline, whatever the server does: finding its address, connecting, TLS, each byte
of head and body together. No more is read than the budget allows. No redirect is followed, no cookie kept,
and nothing is taken from the environment: no proxy, password, root or key log.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import certifi
from yarl import URL

if TYPE_CHECKING:
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace


class Deadline:
    """Time and bytes that one piece of work may use, with all of its connects, logins and retries.

    A socket's time-out starts anew with each `recv`, so a server that sends a byte a second never meets it.
    """

    __slots__ = ("bytes_left", "ends_at")

    def __init__(self, seconds: float, max_bytes: int) -> None:
        self.ends_at = time.monotonic() + seconds
        self.bytes_left = max_bytes

    def left(self) -> float:
        """Seconds left, possibly negative."""
        return self.ends_at - time.monotonic()


class Failure(Enum):
    """What kept an answer from us."""

    TIME = auto()
    SIZE = auto()
    TLS = auto()
    """The server did not prove who it is."""
    CONNECTION = auto()
    """None could be made, or it broke."""
    ANSWER = auto()
    """It is no HTTP, or not what was asked for."""


class HttpFailure(OSError):
    """Why there was no answer, in our words: a library's own would quote the server."""

    def __init__(self, why: str, failure: Failure, *, connected: bool) -> None:
        """`connected`: a connection stood, so the server as a whole is there."""
        super().__init__(why)
        self.failure, self.connected = failure, connected


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """Any spelling of a name finds it."""
    body: bytes = field(repr=False)


def tls_context(ca_file: Path | None, *, machine: bool = False) -> ssl.SSLContext:
    """Verifies names and chains against `ca_file`, or certifi's roots. OSError: it cannot be read.

    `machine`: without a `ca_file`, the roots that this machine's administrator installed count as well.

    Built by hand: the ready-made contexts obey SSL_CERT_FILE and, worse, SSLKEYLOGFILE.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cafile=str(ca_file) if ca_file else certifi.where())
    installed = ssl.get_default_verify_paths().openssl_cafile  # the file, not what the environment names
    if machine and ca_file is None and Path(installed).is_file():
        context.load_verify_locations(cafile=installed)
    return context


class HttpClient:
    """One server, or a few. `exchange` belongs to one event loop and keeps connections for it."""

    def __init__(self, tls: ssl.SSLContext, connections: int = 1) -> None:
        self._tls = tls
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None
        self._under_way: set[asyncio.Timeout] = set()

    async def exchange(
        self,
        deadline: Deadline,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        cut: bool = False,
    ) -> Answer:
        """Ask once; a GET whose kept connection had died meanwhile is sent again.

        `cut`: an answer that is too long is given as far as it may go, instead of failing.

        Raises HttpFailure.
        """
        if self._session is None:
            self._session = self._open(self._connections)
        limit = asyncio.timeout(deadline.left())
        self._under_way.add(limit)
        try:
            return await _exchange(
                self._session, limit, deadline, method, url, headers or {}, body, cut=cut, keep=True
            )
        finally:
            self._under_way.discard(limit)

    def exchange_once(
        self,
        deadline: Deadline,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        cut: bool = False,
    ) -> Answer:
        """As `exchange`, over a connection of its own. This thread waits; it has no loop."""

        async def once() -> Answer:
            session = self._open(0)
            try:
                limit = asyncio.timeout(deadline.left())
                return await _exchange(
                    session, limit, deadline, method, url, headers or {}, body, cut=cut, keep=False
                )
            finally:
                await session.close()
                await asyncio.sleep(0)  # for the connection that was cut

        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(once())
        finally:
            loop.close()  # not asyncio.run, which would wait for a name server that does not answer

    async def close(self) -> None:
        """What is under way fails, as if its time were up."""
        if self._session is not None:
            for limit in self._under_way:
                limit.reschedule(asyncio.get_running_loop().time())
            await asyncio.sleep(0)
            await self._session.close()

    def _open(self, kept: int) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=_Connector(limit=kept or 1, force_close=not kept, ssl=self._tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "coatcheck", "Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(),  # the deadline is ours, over all of it
            auto_decompress=False,
            trust_env=False,
        )


# --- one exchange -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Connection:
    transport: asyncio.BaseTransport | None = None


_connection: ContextVar[_Connection] = ContextVar("connection")


class _Connector(aiohttp.TCPConnector):
    """Notes the connection of an exchange: when that fails, it is cut, not closed.

    A TLS connection that is closed waits half a minute for the server to close it as well.
    """

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: "list[Trace]",
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp asks so
    ) -> "Connection":
        connection = await super().connect(req, traces, timeout)
        _connection.get().transport = connection.transport
        return connection


class _TooLong(Exception):
    pass


class _Coded(Exception):
    pass


async def _exchange(
    session: aiohttp.ClientSession,
    limit: asyncio.Timeout,
    deadline: Deadline,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    cut: bool,
    keep: bool,
) -> Answer:
    connection, kept = _Connection(), False
    _connection.set(connection)
    try:
        async with (
            limit,
            session.request(
                method, URL(url, encoded=True), headers=headers, data=body or None, allow_redirects=False
            ) as response,
        ):
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise _Coded  # a small compressed body may unpack to gigabytes; we asked for none
            answer = Answer(response.status, response.headers, await _read(response, deadline, cut))
            kept = keep and response.content.at_eof()
            return answer
    except (aiohttp.ClientError, OSError, ValueError, _TooLong, _Coded) as error:
        failure = _failure(error, connection.transport is not None)
    finally:
        if not kept and isinstance(connection.transport, asyncio.WriteTransport):
            connection.transport.abort()
    raise failure  # outside of the handler, so that it has no context: that one may quote the server


async def _read(response: aiohttp.ClientResponse, deadline: Deadline, cut: bool) -> bytes:
    deadline.bytes_left -= sum(len(name) + len(value) + 4 for name, value in response.raw_headers)
    body = bytearray()
    async for chunk in response.content.iter_any():
        room = max(deadline.bytes_left, 0)
        deadline.bytes_left -= len(chunk)
        body += chunk[:room]
        if len(chunk) > room:
            if not cut:
                raise _TooLong
            break
    return bytes(body)


def _failure(error: Exception, connected: bool) -> HttpFailure:
    match error:
        case _TooLong():
            return HttpFailure("its answer is larger than allowed", Failure.SIZE, connected=True)
        case _Coded():
            return HttpFailure("it compressed its answer, unasked", Failure.ANSWER, connected=True)
        case TimeoutError():
            return HttpFailure("it does not answer in time", Failure.TIME, connected=connected)
        case aiohttp.ClientConnectorCertificateError(certificate_error=ssl.SSLCertVerificationError() as why):
            text = f"its certificate is not trusted: {why.verify_message}"
            return HttpFailure(text, Failure.TLS, connected=False)
        case aiohttp.ClientSSLError():
            return HttpFailure("it did not complete the TLS handshake", Failure.TLS, connected=False)
        case aiohttp.ClientResponseError():
            return HttpFailure("its answer is broken", Failure.ANSWER, connected=True)
        case aiohttp.ClientOSError() | OSError() if (said := _words(error)) is not None:
            return HttpFailure(said, Failure.CONNECTION, connected=connected)
    return HttpFailure(
        f"the exchange failed ({type(error).__name__})", Failure.CONNECTION, connected=connected
    )


def _words(error: Exception) -> str | None:
    """The operating system's, for the error that it gave: asyncio's own tell the address as well."""
    inner = getattr(error, "os_error", error)
    if not isinstance(inner, OSError) or inner.errno is None:
        return None
    return (
        os.strerror(inner.errno) if inner.errno > 0 else inner.strerror
    )  # a name that is not found: below 0
