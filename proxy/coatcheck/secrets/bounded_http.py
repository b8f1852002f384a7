"""A requests session that keeps a Deadline and takes nothing from the environment.

Everything which waits on the socket (each address tried, the TLS handshake, each send, each recv of
head and body) waits at most for what the deadline of the running read has left, on the thread that
reads: when the time is up the thread is free, whatever the server does.
"""

import io
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from http.client import HTTPResponse
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path
from typing import Any

import certifi
import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util.retry import Retry

from coatcheck.secrets.deadline import Deadline

_running: ContextVar[Deadline] = ContextVar("deadline")

_SEND_BYTES = 16_384
"""One TLS record: `SSLSocket.sendall` starts its time-out anew with each record."""


@contextmanager
def keeping(deadline: Deadline) -> Iterator[None]:
    """Requests made on this thread inside the block keep `deadline`. Outside of one they fail."""
    token = _running.set(deadline)
    try:
        yield
    finally:
        _running.reset(token)


class _DeadlineReader(io.RawIOBase):
    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        self._raw = raw
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        deadline = _running.get()
        self._sock.settimeout(deadline.remaining())
        try:
            count: int | None = self._raw.readinto(buffer)
        except TimeoutError:
            deadline.spent = "time"
            raise
        deadline.take(count or 0)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _DeadlineResponse(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_DeadlineReader(self.fp.detach(), sock))


def _connect(host: str, port: int) -> socket.socket:
    """The first address that answers, all of them together within the deadline."""
    deadline = _running.get()
    deadline.remaining()  # a repetition that comes too late is no failure to connect
    deadline.connected = False
    error: OSError = OSError("the name has no address")
    for family, kind, proto, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, proto)
        try:
            sock.settimeout(deadline.remaining())
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(deadline.remaining())  # for the TLS handshake, which urllib3 does next
        except OSError as exc:
            sock.close()
            error = exc
        else:
            return sock
    raise error


class _Sending:
    """`send` in slices, each waiting for no longer than the deadline has left."""

    sock: socket.socket | None

    def send(self, data: Any) -> None:
        deadline = _running.get()
        if self.sock is None:
            self.connect()
        if self.sock is None:
            raise OSError("not connected")
        deadline.connected = True
        view = memoryview(data)
        for start in range(0, len(view), _SEND_BYTES):
            self.sock.settimeout(deadline.remaining())
            self.sock.sendall(view[start : start + _SEND_BYTES])

    def connect(self) -> None:
        raise NotImplementedError


class _PlainConnection(_Sending, HTTPConnection):
    response_class = _DeadlineResponse

    def _new_conn(self) -> socket.socket:
        return _connect(self._dns_host, self.port or 80)

    def connect(self) -> None:
        HTTPConnection.connect(self)


class _TLSConnection(_Sending, HTTPSConnection):
    response_class = _DeadlineResponse

    def _new_conn(self) -> socket.socket:
        return _connect(self._dns_host, self.port or 443)

    def connect(self) -> None:
        HTTPSConnection.connect(self)


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _TLSConnection


class _DeadlineAdapter(HTTPAdapter):
    def __init__(self, context: ssl.SSLContext, connections: int) -> None:
        self._context = context
        # One repetition of a GET whose kept connection had died meanwhile; within the same deadline.
        retries = Retry(total=1, connect=0, read=1, redirect=0, status=0, other=0, allowed_methods={"GET"})
        super().__init__(pool_connections=1, pool_maxsize=connections, max_retries=retries)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, ssl_context=self._context, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TLSPool}

    def close(self) -> None:
        # urllib3 only lets go of its pools; a traceback that still knows one would keep it connected.
        for key in self.poolmanager.pools.keys():  # noqa: SIM118 (it refuses to be iterated)
            if (pool := self.poolmanager.pools.get(key)) is not None:
                pool.close()
        super().close()

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        response = super().send(request, *args, **kwargs)
        if response.headers.get("Content-Encoding", "identity") != "identity":
            response.close()  # a small compressed body may unpack to gigabytes; we asked for none
            raise requests.exceptions.ContentDecodingError("a compressed answer was not asked for")
        return response


def tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """Verifies names and chains against `ca_file`, or certifi's roots.

    Built by hand: the ready-made contexts obey SSL_CERT_FILE and, worse, SSLKEYLOGFILE.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cafile=str(ca_file) if ca_file else certifi.where())
    return context


def deadline_session(ca_file: Path | None, connections: int) -> requests.Session:
    """A session for at most `connections` threads: no proxies, no .netrc, no cookies, no environment.

    Raises:
        OSError: the CA file cannot be read.
    """
    # urllib3 logs the answers that it cannot parse, and the path of every request.
    logging.getLogger("urllib3").setLevel(logging.CRITICAL)
    session = requests.Session()
    session.trust_env = False
    session.verify = str(ca_file) if ca_file else True
    session.headers["Accept-Encoding"] = "identity"
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    adapter = _DeadlineAdapter(tls_context(ca_file), connections)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    return session
