"""The session that libraries of the `requests` family get."""

import asyncio
import socket
import threading
import time

import pytest
import requests

from coatcheck.platform.bounded_session import for_threads
from coatcheck.platform.http_client import Deadline, Failure, HttpClient, HttpFailure, tls_context
from tests.platform.test_http_client import drip, server


async def test_what_a_library_posts_arrives_as_requests_would_send_it() -> None:
    """JSON, parameters and bytes; its answer reads like one of requests'."""
    seen: list[bytes] = []

    def serve(stream: socket.socket) -> None:
        message = b""
        while not message.endswith((b'{"b": 2}', b"raw")):
            message += stream.recv(4096)
        seen.append(message)
        stream.sendall(b"HTTP/1.1 404 No\r\nConnection: close\r\nContent-Type: application/json\r\n")
        stream.sendall(b'Content-Length: 7\r\n\r\n{"a":1}')

    with server(serve) as url:
        client = HttpClient(tls_context(None))
        session: requests.Session = for_threads(client, Deadline(5, 10_000))
        answer = await asyncio.to_thread(session.post, url, params={"q": "a b"}, json={"b": 2})
        await asyncio.to_thread(session.request, method="post", url=url, data=b"raw", headers={"X-A": "b"})
        await client.close()
    assert (answer.status_code, answer.ok, answer.json()) == (404, False, {"a": 1})
    assert seen[0].startswith(b"POST /?q=a+b ") and seen[0].endswith(b'{"b": 2}')
    assert seen[1].endswith(b"raw") and b"X-A: b" in seen[1]


async def test_a_thread_does_not_wait_for_a_loop_that_has_ended() -> None:
    """Its pool would never end, nor would the program."""
    with server(drip(b"")) as url:
        client = HttpClient(tls_context(None))
        session = for_threads(client, Deadline(0.5, 10_000))
        failed: list[BaseException] = []

        def get() -> None:
            try:
                session.get(url)
            except HttpFailure as failure:
                failed.append(failure)

        waiting = threading.Thread(target=get)
        waiting.start()
        time.sleep(3)  # as a loop that does nothing any more
        assert not waiting.is_alive() and len(failed) == 1
        await client.close()


async def test_a_failure_is_of_the_family_that_the_library_expects() -> None:
    """hvac and OpenTelemetry's exporter catch `requests`' exceptions, and our code our own."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
    client = HttpClient(tls_context(None))
    session = for_threads(client, Deadline(5, 10_000))
    with pytest.raises(requests.ConnectionError) as failed:
        await asyncio.to_thread(session.get, url)
    await client.close()
    assert isinstance(failed.value, HttpFailure) and failed.value.failure is Failure.CONNECTION
    assert failed.value.__context__ is None and not failed.value.connected
