"""Clients that end with their deadline and their budget, against servers that misbehave below HTTP."""

import asyncio
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from coatcheck.platform.bounded_session import for_threads
from coatcheck.platform.http_client import (
    Answer,
    Deadline,
    Failure,
    HttpClient,
    HttpFailure,
    tls_context,
)

type Serve = Callable[[socket.socket], None]
type Get = Callable[[str, Deadline, Path | None], Answer]
"""One of the three ways to ask."""


@pytest.fixture
def ca(tmp_path: Path) -> trustme.CA:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return ca


@contextmanager
def server(serve: Serve, ca: trustme.CA | None = None) -> Iterator[str]:
    """Calls `serve` with each connection, on a thread of its own; TLS for `localhost` with a CA."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if ca:
        ca.issue_cert("localhost").configure_cert(context)
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def one(connection: socket.socket) -> None:
        try:
            connection.settimeout(10)
            with context.wrap_socket(connection, server_side=True) if ca else connection as stream:
                serve(stream)
        except OSError:
            pass  # the client left, which is what these tests want

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=one, args=(connection,)))
            threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield f"{'https' if ca else 'http'}://localhost:{listener.getsockname()[1]}/"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join(10)
        for thread in threads:
            thread.join(4)
        assert not any(thread.is_alive() for thread in threads), "a connection was left open"


def request_head(stream: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        if not (chunk := stream.recv(4096)):
            raise ConnectionResetError
        data += chunk
    return data


def drip(head: bytes) -> Serve:
    """After the request: `head`, then a byte every 50 ms for as long as somebody listens."""

    def serve(stream: socket.socket) -> None:
        request_head(stream)
        stream.sendall(head)
        for _ in range(200):
            stream.sendall(b"y")
            time.sleep(0.05)

    return serve


def say(answer: bytes) -> Serve:
    def serve(stream: socket.socket) -> None:
        request_head(stream)
        stream.sendall(answer)

    return serve


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def on_a_loop(url: str, deadline: Deadline, ca_file: Path | None) -> Answer:
    async def ask() -> Answer:
        client = HttpClient(tls_context(ca_file))
        try:
            return await client.exchange(deadline, "GET", url)
        finally:
            await client.close()

    return asyncio.run(ask())


def once(url: str, deadline: Deadline, ca_file: Path | None) -> Answer:
    return HttpClient(tls_context(ca_file)).exchange_once(deadline, "GET", url)


def for_a_thread(url: str, deadline: Deadline, ca_file: Path | None) -> Answer:
    async def ask() -> Answer:
        client = HttpClient(tls_context(ca_file))
        session = for_threads(client, deadline)
        try:
            answer = await asyncio.to_thread(session.get, url, timeout=99)
        finally:
            await client.close()
        return Answer(answer.status_code, answer.headers, answer.content)

    return asyncio.run(ask())


WAYS = pytest.mark.parametrize("get", [on_a_loop, once, for_a_thread])


def failure(get: Get, url: str, deadline: Deadline, ca_file: Path | None = None) -> HttpFailure:
    with pytest.raises(HttpFailure) as failed:
        get(url, deadline, ca_file)
    assert failed.value.__context__ is None, "it may quote the server"
    return failed.value


@WAYS
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 ", b"HTTP/1.1 200 OK\r\nX-Slow:", b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"],
)
def test_a_dripping_answer_ends_with_the_deadline(
    get: Get, head: bytes, tls: bool, ca: trustme.CA, tmp_path: Path
) -> None:
    """In the status line, a header and the body; over plain TCP and TLS; however it is asked."""
    with server(drip(head), ca if tls else None) as url:
        began = time.monotonic()
        failed = failure(get, url, Deadline(0.5, 10_000), tmp_path / "ca.pem")
        assert 0.4 < time.monotonic() - began < 5
    assert failed.failure is Failure.TIME and failed.connected


@WAYS
def test_a_tls_handshake_that_drips_ends_with_the_deadline(get: Get) -> None:
    """The server says the first bytes of a handshake, one at a time: that is still connecting."""

    def serve(stream: socket.socket) -> None:
        for byte in b"\x16\x03\x03\x40\x00" + b"\x02" * 200:
            stream.sendall(bytes([byte]))
            time.sleep(0.05)

    with server(serve) as url:
        began = time.monotonic()
        failed = failure(get, url.replace("http:", "https:"), Deadline(0.5, 10_000))
        assert 0.4 < time.monotonic() - began < 5
    assert failed.failure is Failure.TIME and not failed.connected


def test_a_receiver_that_does_not_read_ends_with_the_deadline() -> None:
    """A request larger than the socket's buffers, and nobody takes it. Its connection does not stay."""
    gone = threading.Event()

    def serve(stream: socket.socket) -> None:
        time.sleep(2)
        try:
            while stream.recv(1 << 20):
                pass
        finally:
            gone.set()

    with server(serve) as url:
        began = time.monotonic()
        with pytest.raises(HttpFailure) as failed:
            HttpClient(tls_context(None)).exchange_once(
                Deadline(0.5, 10_000), "POST", url, {}, b"x" * 32_000_000
            )
        assert 0.4 < time.monotonic() - began < 2 and failed.value.failure is Failure.TIME
        assert gone.wait(5), "the connection was left open"


@WAYS
def test_a_flood_ends_with_the_byte_budget(get: Get) -> None:
    """What arrives is counted, whatever Content-Length does not say."""

    def serve(stream: socket.socket) -> None:
        request_head(stream)
        stream.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            stream.sendall(b"y" * 1000)

    with server(serve) as url:
        began = time.monotonic()
        assert failure(get, url, Deadline(60, 1_000_000)).failure is Failure.SIZE
        assert time.monotonic() - began < 30


@WAYS
@pytest.mark.parametrize(
    "line",
    [b"HTTP/1.1 100 Continue\r\n\r\n", b"X: y\r\n", b"y"],
    ids=["interim answers", "headers", "a header"],
)
def test_a_head_without_end_ends_as_well(get: Get, line: bytes) -> None:
    """Soon where it is one head, with the deadline where it is many, and it fills no memory."""

    def serve(stream: socket.socket) -> None:
        request_head(stream)
        stream.sendall(b"" if line.startswith(b"HTTP") else b"HTTP/1.1 200 OK\r\nZ: ")
        while True:
            stream.sendall(line * 1000)

    before = resident_bytes()
    with server(serve) as url:
        began = time.monotonic()
        assert failure(get, url, Deadline(2, 1_000_000)).failure is not Failure.SIZE
        assert time.monotonic() - began < 5
    assert resident_bytes() - before < 200 << 20


def resident_bytes() -> int:
    """Of this process, in which other tests ran before."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@WAYS
@pytest.mark.parametrize(
    "said",
    [
        b"nonsense " * 5000,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
        b"HTTP/1.1 200 nonsense\r\nContent-Length: nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 8\r\n\r\nnonsense",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nnonsense",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense",
        b"",
    ],
)
def test_a_broken_answer_is_a_failure_that_repeats_nothing_of_it(get: Get, said: bytes) -> None:
    """The reason goes into logs: it is ours, not the other side's bytes. Coded ones are not unpacked."""
    with server(say(said)) as url:
        failed = failure(get, url, Deadline(5, 1_000_000))
    assert "nonsense" not in str(failed) and len(str(failed)) < 100
    assert failed.failure in (Failure.ANSWER, Failure.CONNECTION) and failed.connected


@WAYS
@pytest.mark.parametrize("url", ["http://a..b:80/", "http://localhost:1/", "http://name.invalid/"])
def test_a_server_that_is_not_there_is_a_failure_to_connect(get: Get, url: str) -> None:
    """A name that no DNS can hold, too, which fails with an error of text."""
    failed = failure(get, url, Deadline(5, 1000))
    assert not failed.connected and failed.failure in (Failure.CONNECTION, Failure.TIME)


@WAYS
def test_another_ca_or_another_name_is_no_proof(get: Get, ca: trustme.CA, tmp_path: Path) -> None:
    """TLS is verified against the roots of the setting, and for the name that is asked."""
    with server(say(OK), ca) as url:
        assert get(url, Deadline(5, 1000), tmp_path / "ca.pem").body == b"ok"
        for asked, roots in ((url, None), (url.replace("localhost", "127.0.0.1"), tmp_path / "ca.pem")):
            failed = failure(get, asked, Deadline(5, 1000), roots)
            assert failed.failure is Failure.TLS and "certificate is not trusted" in str(failed)


@WAYS
def test_a_redirect_is_an_answer_and_not_followed(get: Get) -> None:
    """It goes where the operator wrote."""
    moved = b"HTTP/1.1 307 Moved\r\nLocation: http://localhost:1/\r\nContent-Length: 0\r\n\r\n"
    with server(say(moved)) as url:
        assert get(url, Deadline(5, 1000), None).status == 307


@WAYS
def test_nothing_is_taken_from_the_environment(
    get: Get, ca: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No proxy, password or other root; and SSLKEYLOGFILE would write down what opens the traffic."""
    for name in ("HTTP_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    netrc = tmp_path / "netrc"
    netrc.write_text("machine localhost login somebody password something\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    heads: list[bytes] = []

    def serve(stream: socket.socket) -> None:
        heads.append(request_head(stream))
        stream.sendall(OK)

    with server(serve, ca) as url:
        assert get(url, Deadline(5, 10_000), tmp_path / "ca.pem").body == b"ok"
        assert failure(get, url, Deadline(5, 10_000)).failure is Failure.TLS
    assert b"authorization" not in heads[0].lower()
    assert not (tmp_path / "keys").exists()


async def test_a_kept_connection_that_died_is_replaced_once() -> None:
    """The server closed it between two requests, as load balancers do: the GET is sent again."""
    connections = 0

    def serve(stream: socket.socket) -> None:
        nonlocal connections
        connections += 1
        request_head(stream)
        stream.sendall(OK)
        request_head(stream)  # take the second one, and close without an answer

    with server(serve) as url:
        client = HttpClient(tls_context(None))
        for _ in range(2):
            assert (await client.exchange(Deadline(5, 10_000), "GET", url)).body == b"ok"
        await client.close()
    assert connections == 2


async def test_cookies_are_not_kept() -> None:
    """Nothing of one answer goes into the next request."""
    heads: list[bytes] = []

    def serve(stream: socket.socket) -> None:
        while True:
            heads.append(request_head(stream))
            stream.sendall(b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 2\r\n\r\nok")

    with server(serve) as url:
        client = HttpClient(tls_context(None))
        for _ in range(2):
            await client.exchange(Deadline(5, 10_000), "GET", url)
        await client.close()
    assert len(heads) == 2 and not any(b"cookie" in head.lower() for head in heads)


def test_an_answer_that_may_be_cut_is_given_up_to_its_bound() -> None:
    """Somebody who is told something has nothing to say that matters; that it answered does."""
    with server(lambda stream: say(b"HTTP/1.1 200 OK\r\n\r\n" + b"z" * 100_000)(stream)) as url:
        answer = HttpClient(tls_context(None)).exchange_once(Deadline(5, 1000), "POST", url, cut=True)
    assert (answer.status, set(answer.body)) == (200, {ord("z")}) and len(answer.body) <= 1000


async def test_exchanges_of_one_deadline_share_it() -> None:
    """A login and the read that needed it, together."""
    with server(say(OK)) as url:
        client, deadline = HttpClient(tls_context(None)), Deadline(0.3, 22)
        await client.exchange(deadline, "GET", url)
        with pytest.raises(HttpFailure, match="larger"):
            await client.exchange(deadline, "GET", url)
        await asyncio.sleep(0.3)
        with pytest.raises(HttpFailure, match="in time"):
            await client.exchange(deadline, "GET", url)
        await client.close()
