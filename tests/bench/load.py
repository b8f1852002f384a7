"""The load: HTTPS requests through CONNECT from one process, by epoll, and how long each took.

Python on purpose: a client that tunnels, takes turns with handles and looks at every answer is not to be
had from Debian, and its ceiling, printed with the results, is far above any of the proxies'.
"""

import gc
import select
import socket
import ssl
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from tests.bench.origin import BODY
from tests.bench.proxies import BenchError
from tests.bench.world import PATH, Route

STALL_SECONDS = 20.0
"""No answer at all for this long: something hangs, and no figure would mean anything."""

asked: Counter[tuple[str, int] | None] = Counter()
"""Requests answered so far, by proxy (None: none), so that audit records can be counted against them."""

_BODY = BODY.encode()


@dataclass(slots=True)
class Sample:
    """Answers that were right, all of them; the rest raises."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Requests per second."""
        return len(self.latencies) / self.seconds

    def quantile(self, q: float) -> float:
        """Seconds."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def client_context(*ca_files: Path) -> ssl.SSLContext:
    """What an SDK has: verification on, HTTP/1.1, sessions not resumed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for ca in ca_files:
        context.load_verify_locations(ca)
    context.set_alpn_protocols(["http/1.1"])
    return context


def request_bytes(route: Route, handle: str) -> bytes:
    """A GET as the openai SDK would send it, without a body."""
    return (
        f"GET {PATH} HTTP/1.1\r\nHost: {route.host}\r\nAuthorization: Bearer {handle}\r\n"
        "Accept: application/json\r\nUser-Agent: bench/1\r\nAccept-Encoding: identity\r\n"
        "Connection: keep-alive\r\n\r\n"
    ).encode()


def _is_complete(answer: bytes) -> bool:
    """Whether the whole answer is there. BenchError when it is not the origin's."""
    if not answer.startswith(b"HTTP/1.1 200"):
        raise BenchError(f"an answer was not the origin's 200: {answer[:400]!r}")
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    if b"chunked" in head:
        if not body.endswith(b"0\r\n\r\n"):
            return False
        right = _BODY in body
    else:
        if len(body) < len(_BODY):
            return False
        right = body == _BODY
    if not right:
        raise BenchError(f"an answer was not the origin's: {answer[-400:]!r}")
    return True


class Client:
    """One connection through a proxy, or straight to the origin. `yield` means: wait until readable."""

    def __init__(self, route: Route, context: ssl.SSLContext) -> None:
        self._route = route
        self._context = context
        self._requests = cycle([request_bytes(route, handle) for handle in route.handles])
        self.raw: socket.socket
        self._tls: ssl.SSLSocket

    def connect(self) -> None:
        """TCP only: on loopback that does not wait."""
        self.raw = socket.create_connection(self._route.proxy or self._route.origin, STALL_SECONDS)
        self.raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.raw.setblocking(False)

    def open(self) -> Generator[None]:
        """CONNECT and the TLS handshake."""
        if self._route.proxy is not None:
            self.raw.send(
                f"CONNECT {self._route.tunnel} HTTP/1.1\r\nHost: {self._route.tunnel}\r\n\r\n".encode()
            )
            answer = b""
            while b"\r\n\r\n" not in answer:
                yield
                answer += self._received(self.raw.recv(65_536))
            if b" 200 " not in answer.partition(b"\r\n")[0]:
                raise BenchError(f"CONNECT {self._route.tunnel} was refused: {answer[:400]!r}")
        self._tls = self._context.wrap_socket(
            self.raw, server_hostname=self._route.host, do_handshake_on_connect=False
        )
        while True:
            try:
                self._tls.do_handshake()
                return
            except ssl.SSLWantReadError:
                yield

    def ask(self) -> Generator[None]:
        """One request and its whole answer."""
        self._tls.send(next(self._requests))
        answer = b""
        while True:
            yield
            try:
                answer += self._received(self._tls.recv(65_536))
            except ssl.SSLWantReadError:
                continue
            if _is_complete(answer):
                asked[self._route.proxy] += 1
                return

    def close(self) -> None:
        tls = getattr(self, "_tls", None)
        (tls or self.raw).close()

    def fileno(self) -> int:
        return getattr(self, "_tls", self.raw).fileno()

    def _received(self, data: bytes) -> bytes:
        if not data:
            raise BenchError("the proxy closed a connection in the middle of a request")
        return data


class _Loop:
    """Runs generators of clients side by side."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._tasks: dict[int, Generator[None]] = {}

    def add(self, descriptor: int, task: Generator[None]) -> None:
        """Run `task` up to its first wait."""
        if next(task, self) is not self:
            self._tasks[descriptor] = task
            self._epoll.register(descriptor, select.EPOLLIN)

    def run(self) -> None:
        while self._tasks:
            ready = self._epoll.poll(STALL_SECONDS)
            if not ready:
                raise BenchError(f"no answer for {STALL_SECONDS:g} s on {len(self._tasks)} connections")
            for descriptor, _ in ready:
                if next(self._tasks[descriptor], self) is self:
                    del self._tasks[descriptor]
        self._epoll.close()


def kept(routes: list[Route], context: ssl.SSLContext, *, seconds: float = 0.0, count: int = 0) -> Sample:
    """Requests on one kept connection a route, for `seconds` or until `count`. Opening is not timed."""
    sample = Sample()
    clients = [Client(route, context) for route in routes]
    _open_all(clients)
    left = count or 1 << 62
    start = time.perf_counter()
    deadline = start + (seconds or 1e9)

    def work(client: Client) -> Generator[None]:
        nonlocal left
        now = time.perf_counter()
        while left > 0 and now < deadline:
            left -= 1
            yield from client.ask()
            before, now = now, time.perf_counter()
            sample.latencies.append(now - before)

    with _undisturbed():
        loop = _Loop()
        for client in clients:
            loop.add(client.fileno(), work(client))
        loop.run()
        sample.seconds = time.perf_counter() - start
    for client in clients:
        client.close()
    return sample


def _open_all(clients: list[Client]) -> None:
    """Connections, and one request on each so that upstream connections are there as well."""

    def first(client: Client) -> Generator[None]:
        yield from client.open()
        yield from client.ask()

    loop = _Loop()
    for client in clients:
        client.connect()
        loop.add(client.fileno(), first(client))
    loop.run()


def fresh(routes: list[Route], context: ssl.SSLContext, seconds: float) -> Sample:
    """A new connection for each request, one at a time a route: TCP, CONNECT, TLS, request, answer."""
    sample = Sample()
    start = time.perf_counter()
    deadline = start + seconds
    epoll = select.epoll()
    running: dict[int, tuple[Route, Client, Generator[None], float]] = {}

    def work(client: Client) -> Generator[None]:
        yield from client.open()
        yield from client.ask()

    def begin(route: Route) -> None:
        began = time.perf_counter()
        client = Client(route, context)
        client.connect()
        task = work(client)
        descriptor = client.raw.fileno()
        next(task)
        running[descriptor] = (route, client, task, began)
        epoll.register(client.fileno(), select.EPOLLIN)

    with _undisturbed():
        for route in routes:
            begin(route)
        while running:
            ready = epoll.poll(STALL_SECONDS)
            if not ready:
                raise BenchError(f"no answer for {STALL_SECONDS:g} s on {len(running)} new connections")
            for descriptor, _ in ready:
                route, client, task, began = running[descriptor]
                if next(task, sample) is not sample:
                    continue
                now = time.perf_counter()
                sample.latencies.append(now - began)
                del running[descriptor]
                epoll.unregister(descriptor)
                client.close()
                if now < deadline:
                    begin(route)
        sample.seconds = time.perf_counter() - start
    epoll.close()
    return sample


def alternating(routes: list[Route], context: ssl.SSLContext, count: int) -> list[Sample]:
    """One client, one request at a time, on each route in turn: `count` requests each, in blocks."""
    samples = [Sample() for _ in routes]
    clients = [Client(route, context) for route in routes]
    _open_all(clients)

    def work(client: Client, sample: Sample) -> Generator[None]:
        for _ in range(50):
            before = time.perf_counter()
            yield from client.ask()
            sample.latencies.append(time.perf_counter() - before)

    with _undisturbed():
        for _ in range(count // 50):
            for client, sample in zip(clients, samples, strict=True):
                loop = _Loop()
                loop.add(client.fileno(), work(client, sample))
                loop.run()
    for client in clients:
        client.close()
    return samples


class _undisturbed:  # noqa: N801 - reads as a statement
    """No garbage collection of ours while we time others."""

    def __enter__(self) -> None:
        gc.collect()
        gc.disable()

    def __exit__(self, *error: object) -> None:
        gc.enable()
