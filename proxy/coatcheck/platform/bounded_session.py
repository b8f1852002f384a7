"""A `requests.Session` whose exchanges are bounded, for libraries that speak `requests`.

A file of its own: a daemon that talks to neither does not import `requests`.
"""

import asyncio
import io
from collections.abc import Callable, Mapping
from typing import Any, Final

import requests

from coatcheck.platform.http_client import Answer, Deadline, Failure, HttpClient, HttpFailure

_GRACE: Final = 1.0
"""Seconds after which a thread no longer waits for a loop that does not even notice a deadline."""


class SessionFailure(HttpFailure, requests.ConnectionError):
    """An `HttpFailure` of `requests`' family, as libraries that get a `BoundedSession` expect."""


class BoundedSession(requests.Session):
    """What a library that speaks `requests` is given in place of a session of its own.

    Its adapters, proxies, cookies and redirects are not used: whatever is asked is one bounded exchange.
    """

    def __init__(self, exchange: Callable[[str, str, Mapping[str, str], bytes], Answer]) -> None:
        super().__init__()
        self.trust_env = False
        self._exchange = exchange

    def request(self, method: str | bytes, url: str | bytes, *_: Any, **given: Any) -> requests.Response:
        """Raises SessionFailure."""
        parts = {name: given.get(name) for name in ("headers", "params", "data", "json")}
        asked = requests.Request(str(method).upper(), url, **parts).prepare()
        body = asked.body or b""
        try:
            answer = self._exchange(
                str(asked.method),
                str(asked.url),
                asked.headers,
                body.encode() if isinstance(body, str) else body,
            )
        except HttpFailure as failure:
            why, kind, connected = str(failure), failure.failure, failure.connected
        else:
            response = requests.Response()
            response.status_code, response.url, response.encoding = (
                answer.status,
                str(asked.url),
                "utf-8",
            )
            response.headers.update(answer.headers)
            response.raw = io.BytesIO(answer.body)
            return response
        raise SessionFailure(why, kind, connected=connected)


def for_threads(client: HttpClient, deadline: Deadline) -> BoundedSession:
    """For a library that blocks another thread: its exchanges run on the loop that this is called on."""
    loop = asyncio.get_running_loop()

    def exchange(method: str, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        waiting = asyncio.run_coroutine_threadsafe(
            client.exchange(deadline, method, url, headers, body), loop
        )
        try:
            return waiting.result(max(deadline.left(), 0) + _GRACE)
        except TimeoutError:
            waiting.cancel()
        raise HttpFailure("it does not answer in time", Failure.TIME, connected=False)

    return BoundedSession(exchange)
