"""One batch of OTLP to a collector, over HTTP: bounded in time and bytes, whatever the collector does.

Neither redirects nor the environment's proxies are followed: it goes where the operator wrote.
"""

import http.client
import re
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from coatcheck.private_files import PrivateFileError, read_private

ANSWER_SECONDS: Final = 10.0
"""From the dialling to the answer's last byte."""
MAX_ANSWER: Final = 64 * 1024
"""Bytes that are read of an answer; what OTLP answers is below a hundred."""
MAX_PAUSE: Final = 30.0
"""Seconds: the longest `Retry-After` that is heeded. Meanwhile the queue fills, and is bounded itself."""
MAX_HEADERS: Final = 16
RETRYABLE: Final = frozenset({429, 502, 503, 504})
"""OTLP 1.x, "Failures": these may be sent again, others must not."""
_HEADER: Final = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}):[ \t]*([\x20-\x7e]{0,4096}?)[ \t]*")
_OURS: Final = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "host", "transfer-encoding"}
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a batch."""

    why: str = ""
    """Why it was not taken, in words without anything of the headers file; empty: it was."""
    again_after: float | None = None
    """Seconds until another try is worth it; None: never."""
    body: bytes = b""


def headers(text: str) -> dict[str, str]:
    """`Name: value` lines; comments behind `#` at a line's start. ValueError, which repeats no value."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = _HEADER.fullmatch(line)
        if parts is None:
            raise ValueError(f"line {number} is no header: write it as `Name: value`, in ASCII")
        if parts[1].lower() in _OURS:
            raise ValueError(f"line {number} sets {parts[1]}, which is not its to set")
        found[parts[1]] = parts[2]
    if len(found) > MAX_HEADERS:
        raise ValueError(f"it has {len(found)} headers, and at most {MAX_HEADERS} may be")
    return found


class Collector:
    """One address. Used by one thread."""

    def __init__(self, endpoint: str, headers_file: Path | None, ca_file: Path | None) -> None:
        """`endpoint` is the base: `/v1/traces` and `/v1/logs` are added. `headers_file` is read for each
        batch, so that a token can be rotated; only its owner may read it. OSError for a bad `ca_file`."""
        self._url = urlsplit(endpoint)
        self._headers_file = headers_file
        self._tls = ssl.create_default_context(cafile=ca_file) if self._url.scheme == "https" else None

    def send(self, signal: str, body: bytes) -> Answer:
        """POST `body`. Never raises, and returns within about ANSWER_SECONDS."""
        try:
            more = headers(read_private(self._headers_file).decode()) if self._headers_file else {}
        except (PrivateFileError, ValueError) as error:
            return Answer(f"otel_headers_file cannot be used: {error}", again_after=1.0)
        try:
            return self._post(f"{self._url.path.rstrip('/')}/v1/{signal}", body, more)
        except (OSError, http.client.HTTPException, ValueError) as error:
            # Not its text: a broken answer's text holds the collector's bytes.
            return Answer(_reason(error), again_after=1.0)

    def _post(self, path: str, body: bytes, more: dict[str, str]) -> Answer:
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
            fixed = {
                "Content-Type": "application/x-protobuf",
                "User-Agent": "coatcheck",
                "Connection": "close",
            }
            connection.request("POST", path, body, more | fixed)
            answer = connection.getresponse()
            kept = answer.read(MAX_ANSWER)
        finally:
            watch.cancel()
            connection.close()
            raw.close()
            guard.close()
        if late.is_set():  # what was read so far looks like a whole answer to http.client
            raise TimeoutError
        if 200 <= answer.status < 300:
            return Answer(body=kept)
        again = _pause(answer.getheader("Retry-After")) if answer.status in RETRYABLE else None
        return Answer(f"status {answer.status}", again)


def _shut(guard: socket.socket, late: threading.Event) -> None:
    late.set()
    with suppress(OSError):
        guard.shutdown(socket.SHUT_RDWR)


def _pause(retry_after: str | None) -> float:
    """Whole seconds only (RFC 9110 10.2.3): what is a date, or nonsense, is a second."""
    if retry_after is None or not re.fullmatch(r"[0-9]{1,6}", retry_after):
        return 1.0
    return min(MAX_PAUSE, max(1.0, float(retry_after)))


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"its answer is broken ({type(error).__name__})"
