"""One POST to whom the operator named: bounded in time and bytes, whatever the other side does.

Neither redirects nor the environment's proxies are followed: it goes where the operator wrote.
"""

import http.client
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

ANSWER_SECONDS: Final = 10.0
"""From the dialling to the answer's last byte."""
MAX_ANSWER: Final = 64 * 1024
"""Bytes that are read of an answer; nobody whom we tell something has much to say."""


@dataclass(frozen=True, slots=True)
class Answered:
    status: int
    retry_after: str | None
    body: bytes


class Unanswered(Exception):
    """Why there was no answer, in words of ours: a broken one's own hold the other side's bytes."""


class Post:
    """One server. Each use is a connection of its own."""

    def __init__(self, url: str, ca_file: Path | None = None) -> None:
        """Of `url` only scheme, host and port count. OSError for a bad `ca_file`; None: public roots."""
        self._url = urlsplit(url)
        self._tls = ssl.create_default_context(cafile=ca_file) if self._url.scheme == "https" else None

    def __call__(self, target: str, body: bytes, headers: Mapping[str, str]) -> Answered:
        """Raises Unanswered, after about ANSWER_SECONDS at the latest."""
        try:
            return self._post(target, body, dict(headers))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unanswered(_reason(error)) from None

    def _post(self, target: str, body: bytes, headers: dict[str, str]) -> Answered:
        host, tls = self._url.hostname or "", self._tls
        port = self._url.port or (443 if tls else 80)
        raw = socket.create_connection((host, port), timeout=ANSWER_SECONDS)
        # Each `recv` has its own time-out: one byte now and then would hold us for ever. The second
        # descriptor ends the connection wherever it stands, in the middle of a handshake, too.
        guard = raw.dup()
        late = threading.Event()
        watch = threading.Timer(ANSWER_SECONDS, _shut, (guard, late))
        watch.daemon = True
        watch.start()
        connection = http.client.HTTPConnection(host, port)
        try:
            connection.sock = tls.wrap_socket(raw, server_hostname=host) if tls else raw
            connection.request(
                "POST", target, body, headers | {"User-Agent": "coatcheck", "Connection": "close"}
            )
            answer = connection.getresponse()
            kept = answer.read(MAX_ANSWER)
        except (OSError, http.client.HTTPException):
            if late.is_set():  # our own doing, which looks like the other side's
                raise TimeoutError from None
            raise
        finally:
            watch.cancel()
            connection.close()
            raw.close()
            guard.close()
        if late.is_set():  # what was read so far looks like a whole answer to http.client
            raise TimeoutError
        return Answered(answer.status, answer.getheader("Retry-After"), kept)


def _shut(guard: socket.socket, late: threading.Event) -> None:
    late.set()
    with suppress(OSError):
        guard.shutdown(socket.SHUT_RDWR)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"its answer is broken ({type(error).__name__})"
