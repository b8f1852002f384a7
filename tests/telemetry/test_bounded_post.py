"""Whom the operator named gets one POST, and can do nothing worse than not take it."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from coatcheck.telemetry import bounded_post
from coatcheck.telemetry.bounded_post import MAX_ANSWER, Answered, Post, Unanswered


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server of one connection that does what `serve` does."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            try:
                accepted, _ = server.accept()
                with accepted:
                    serve(accepted)
            except OSError:
                pass

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.close()
            thread.join()


def refusal(url: str) -> str:
    with pytest.raises(Unanswered) as why:
        Post(url)("/", b"x", {})
    return str(why.value)


def drip(connection: socket.socket) -> None:
    """Answers one byte now and then, for ever: each `recv` succeeds."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        connection.sendall(b"y")
        time.sleep(0.01)


def pour(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b"z" * 65536)


def listen(connection: socket.socket) -> None:
    """Until nobody is there any more."""
    while connection.recv(65536):
        pass


@pytest.mark.parametrize("serve", [drip, listen])
def test_an_answer_that_never_ends_is_left(
    serve: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a bounded time in all, not a time for each byte."""
    monkeypatch.setattr(bounded_post, "ANSWER_SECONDS", 0.2)
    with listening(serve) as url:
        began = time.monotonic()
        assert refusal(url) == "it does not answer in time"
        assert time.monotonic() - began < 5


def test_a_handshake_that_never_ends_is_left_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of TLS are the other side's, too."""
    monkeypatch.setattr(bounded_post, "ANSWER_SECONDS", 0.2)

    def handshake(connection: socket.socket) -> None:
        connection.sendall(b"\x16\x03\x03\x40\x00")  # a record of 16 KiB that comes byte by byte
        while True:
            connection.sendall(b"\x02")
            time.sleep(0.01)

    with listening(handshake) as url:
        assert refusal(url.replace("http:", "https:"))


def test_an_answer_without_end_is_read_no_further_than_its_bound() -> None:
    """Nobody can fill our memory."""
    with listening(pour) as url:
        assert Post(url)("/", b"x", {}) == Answered(200, None, b"z" * MAX_ANSWER)


@pytest.mark.parametrize(
    "said", [b"nonsense " * 5000, b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000 + b"\r\n", b""]
)
def test_what_is_no_http_is_not_repeated(said: bytes) -> None:
    """The reason goes into the log: it is ours, not the other side's bytes."""
    with listening(lambda connection: connection.sendall(said)) as url:
        why = refusal(url)
    assert why and "nonsense" not in why and len(why) < 100


def test_a_name_that_is_none_is_an_answer_that_did_not_come() -> None:
    """Encoding it for DNS fails with an error of text, not of the network."""
    assert refusal("http://a..b:80/")
