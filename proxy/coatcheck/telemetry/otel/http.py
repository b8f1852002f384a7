"""One batch of OTLP to a collector, over HTTP."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coatcheck.platform.http_client import Deadline, HttpClient, HttpFailure, tls_context
from coatcheck.platform.private_files import PrivateFileError, read_private

MAX_PAUSE: Final = 30.0
"""Seconds: the longest `Retry-After` that is heeded. Meanwhile the queue fills, and is bounded itself."""
MAX_HEADERS: Final = 16
ANSWER_SECONDS: Final = 10.0
"""From looking the collector up to its answer's last byte."""
MAX_ANSWER: Final = 64 * 1024
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
            raise ValueError(f"line {number} is not a header: write it as `Name: value`, in ASCII")
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
        self._base = endpoint.rstrip("/")
        self._headers_file = headers_file
        self._http = HttpClient(tls_context(ca_file, machine=True))

    def send(self, signal: str, body: bytes) -> Answer:
        """POST `body`. Never raises, and takes no longer than ANSWER_SECONDS."""
        try:
            more = headers(read_private(self._headers_file).decode()) if self._headers_file else {}
        except (PrivateFileError, ValueError) as error:
            return Answer(f"otel_headers_file cannot be used: {error}", again_after=1.0)
        try:
            kind = {"Content-Type": "application/x-protobuf"}
            answer = self._http.exchange_once(
                Deadline(ANSWER_SECONDS, MAX_ANSWER),
                "POST",
                f"{self._base}/v1/{signal}",
                more | kind,
                body,
                cut=True,
            )
        except HttpFailure as why:
            return Answer(str(why), again_after=1.0)
        if 200 <= answer.status < 300:
            return Answer(body=answer.body)
        again = _pause(answer.headers.get("Retry-After")) if answer.status in RETRYABLE else None
        return Answer(f"status {answer.status}", again)


def _pause(retry_after: str | None) -> float:
    """Whole seconds only (RFC 9110 10.2.3): what is a date, or nonsense, is a second."""
    if retry_after is None or not re.fullmatch(r"[0-9]{1,6}", retry_after):
        return 1.0
    return min(MAX_PAUSE, max(1.0, float(retry_after)))
