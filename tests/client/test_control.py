"""The client: what it says when there is no daemon, or something else answers."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from coatcheck.client.control import ControlClient, ControlError


def answering(answer: bytes, call: Callable[[ControlClient], object]) -> ControlError:
    """The error of a call to something that sends `answer`, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with pytest.raises(ControlError) as refused:
                call(ControlClient(url=f"http://127.0.0.1:{server.getsockname()[1]}", timeout=5))
        finally:
            thread.join(10)
    return refused.value


def test_a_refusal_keeps_its_reason_and_hint() -> None:
    """As the API wrote them."""
    body = b'{"error": {"reason": "forbidden", "message": "no", "hint": "ask"}}'
    head = b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n" % len(body)
    error = answering(head + body, lambda client: client.policies())
    assert (error.reason, error.message, error.hint, error.status) == ("forbidden", "no", "ask", 403)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhtml",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnull",
        b"HTTP/1.1 302 Found\r\nLocation: http://other.example/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
        b"",
    ],
)
def test_something_else_that_answers_is_an_error_for_people(answer: bytes) -> None:
    """No traceback, and no redirect is followed."""
    error = answering(answer, lambda client: client.show("ses_" + "0" * 24))
    assert error.message and error.hint


def test_without_a_daemon_it_says_what_to_do(tmp_path: Path) -> None:
    """The first thing that a new user sees."""
    with pytest.raises(ControlError) as refused:
        ControlClient(tmp_path / "none.sock").list()
    assert refused.value.reason == "unreachable"
    assert "coatcheck serve" in refused.value.hint


def test_a_token_does_not_cross_a_network_in_the_clear() -> None:
    """Nor is an address guessed."""
    with pytest.raises(ValueError, match="https"):
        ControlClient(url="http://control.example:1", token="t")
    with pytest.raises(ValueError, match="look like"):
        ControlClient(url="control.example")
    with pytest.raises(ValueError, match="either"):
        ControlClient()
    assert "t0ken" not in repr(ControlClient(url="http://127.0.0.1:1", token="t0ken"))


def test_ids_cannot_leave_their_place_in_the_path() -> None:
    """`../policies/reload` is no session."""
    body = b'{"error": {"reason": "not_found", "message": "m", "hint": "h"}}'
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                seen.append(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 404 N\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

        thread = threading.Thread(target=serve)
        thread.start()
        client = ControlClient(url=f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(ControlError):
            client.end("../policies/reload?x#\r\nA: b")
        thread.join(10)
    path = b"/v1/sessions/..%2Fpolicies%2Freload%3Fx%23%0D%0AA%3A%20b/end"
    assert seen[0].startswith(b"POST " + path + b" HTTP/1.1\r\n")
