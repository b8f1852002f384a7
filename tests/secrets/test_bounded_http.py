"""The session that keeps a deadline, against servers which misbehave below HTTP."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
import trustme

from coatcheck.secrets.bounded_http import deadline_session, keeping
from coatcheck.secrets.deadline import Deadline, DeadlineExceeded

type Serve = Callable[[socket.socket], None]


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
            thread.join(10)
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
            stream.sendall(b" ")
            time.sleep(0.05)

    return serve


def get(url: str, deadline: Deadline, ca_file: Path | None = None) -> requests.Response:
    with deadline_session(ca_file, 1) as session, keeping(deadline):
        return session.get(url, timeout=30)


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(
    "head", [b"", b"HTTP/1.1 200 OK\r\nX-Slow:", b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"]
)
def test_a_dripping_answer_ends_with_the_deadline(
    head: bytes, tls: bool, ca: trustme.CA, tmp_path: Path
) -> None:
    """In the status line, a header and the body; over plain TCP and TLS; on the calling thread itself."""
    deadline = Deadline(0.5, 10_000)
    began = time.monotonic()
    with server(drip(head), ca if tls else None) as url:
        with pytest.raises(requests.RequestException):
            get(url, deadline, tmp_path / "ca.pem")
        assert 0.4 < time.monotonic() - began < 5
    assert deadline.spent == "time" and deadline.connected


def test_a_tls_handshake_that_drips_ends_with_the_deadline(ca: trustme.CA, tmp_path: Path) -> None:
    """The server says the first bytes of a handshake, one at a time: that is still connecting."""

    def serve(stream: socket.socket) -> None:
        for byte in b"\x16\x03\x03\x40\x00" + b"\x02" * 200:
            stream.sendall(bytes([byte]))
            time.sleep(0.05)

    deadline = Deadline(0.5, 10_000)
    began = time.monotonic()
    with server(serve) as url:
        with pytest.raises(requests.RequestException):
            get(url.replace("http:", "https:"), deadline, tmp_path / "ca.pem")
        assert 0.4 < time.monotonic() - began < 5
    assert not deadline.connected


def test_a_receiver_that_does_not_read_ends_with_the_deadline() -> None:
    """A request larger than the socket's buffers, and nobody takes it."""
    deadline = Deadline(0.5, 10_000)
    done = threading.Event()
    began = time.monotonic()
    with server(lambda _: print(done.wait(20))) as url, deadline_session(None, 1) as session:
        with keeping(deadline), pytest.raises(requests.RequestException):
            session.post(url, data=b"x" * 32_000_000)
        assert 0.4 < time.monotonic() - began < 10
        done.set()


@pytest.mark.parametrize(
    "flood",
    [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"],
    ids=["interim answers", "a body without end"],
)
def test_a_flood_ends_with_the_byte_budget(flood: bytes) -> None:
    """What arrives is counted, head and body, whatever Content-Length says or does not say."""

    def serve(stream: socket.socket) -> None:
        request_head(stream)
        while True:
            stream.sendall(flood * 100)

    deadline = Deadline(60, 1_000_000)
    began = time.monotonic()
    with server(serve) as url, pytest.raises(requests.RequestException):
        get(url, deadline)
    assert deadline.spent == "bytes"
    assert time.monotonic() - began < 30


def test_a_kept_connection_that_died_is_replaced_once() -> None:
    """The server closed it between two requests, as load balancers do: the GET is sent again."""
    connections = 0

    def serve(stream: socket.socket) -> None:
        nonlocal connections
        connections += 1
        request_head(stream)
        stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        request_head(stream)  # take the second one, and close without an answer

    with server(serve) as url, deadline_session(None, 1) as session:
        for _ in range(2):
            with keeping(Deadline(5, 10_000)):
                assert session.get(url).text == "ok"
    assert connections == 2


def test_cookies_are_not_kept() -> None:
    """Nothing of one answer goes into the next request."""
    heads: list[bytes] = []

    def serve(stream: socket.socket) -> None:
        while True:
            heads.append(request_head(stream))
            stream.sendall(b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 2\r\n\r\nok")

    with server(serve) as url, deadline_session(None, 1) as session:
        for _ in range(2):
            with keeping(Deadline(5, 10_000)):
                session.get(url)
        session.close()
    assert len(heads) == 2 and not any(b"cookie" in head.lower() for head in heads)


def test_tls_keys_are_not_logged(ca: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SSLKEYLOGFILE in the environment would write down what opens Vault's traffic."""
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))

    def serve(stream: socket.socket) -> None:
        request_head(stream)
        stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")

    with server(serve, ca) as url:
        assert get(url, Deadline(5, 10_000), tmp_path / "ca.pem").text == "ok"
    assert not (tmp_path / "keys").exists()


def test_requests_without_a_deadline_fail() -> None:
    """Nobody forgets it: there is no default."""
    with server(lambda _: None) as url, deadline_session(None, 1) as session, pytest.raises(LookupError):
        session.get(url)


def test_a_deadline_counts_time_and_bytes() -> None:
    """The budget that ran out is named."""
    deadline = Deadline(5, 10)
    assert 4 < deadline.remaining() <= 5
    deadline.take(10)
    with pytest.raises(DeadlineExceeded, match="larger"):
        deadline.take(1)
    assert deadline.spent == "bytes"
    late = Deadline(0, 10)
    with pytest.raises(DeadlineExceeded, match="time"):
        late.remaining()
    assert late.spent == "time"
