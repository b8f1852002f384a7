"""What happens to sandboxes, sent to an URL that the operator names: signed, in order, until it is taken.

`Coatcheck-Signature: t=UNIX SECONDS,v1=HEX` is the HMAC-SHA256, under the shared secret, of `t`, a dot and
the body. Whoever checks it also checks that `t` is not old, so that nobody sends it again later.
"""

import dataclasses
import hashlib
import hmac
import http.client
import json
import logging
import ssl
import threading
import time
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Final
from urllib.parse import urlsplit

from coatcheck.private_files import PrivateFileError, read_private
from coatcheck.telemetry.events import SandboxEvent

logger = logging.getLogger("coatcheck.webhook")

WAITING: Final = 1024
"""Events that may wait while the other side is down; what comes then is lost, and that is said in the log."""
PAUSES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds between tries: a receiver that restarts takes less than the minute that these are together."""
ANSWER_SECONDS: Final = 10.0
MAX_ANSWER: Final = 64 * 1024
"""Bytes that are read, so that the connection ends in order."""
LEAST_SECRET: Final = 16


def signature(secret: bytes, at: int, body: bytes) -> str:
    """The value of `Coatcheck-Signature`."""
    mac = hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={mac}"


def webhook(url: str | None, secret_file: Path | None) -> "Webhook | None":
    """What the settings ask for."""
    return None if url is None or secret_file is None else Webhook(url, secret_file)


class Webhook:
    """One URL. Neither redirects nor proxy variables are followed: it is told what the operator wrote."""

    def __init__(self, url: str, secret_file: Path, ca_file: Path | None = None) -> None:
        """`secret_file` is read for each event, so that it can be rotated; only its owner may read it."""
        self._url = urlsplit(url)
        self._secret_file = secret_file
        self._tls = ssl.create_default_context(cafile=ca_file) if self._url.scheme == "https" else None
        self._waiting: Queue[SandboxEvent] = Queue(WAITING)
        self._ending = threading.Event()
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, event: SandboxEvent) -> None:
        """Never waits."""
        try:
            self._waiting.put_nowait(event)
        except Full:
            self._lost += 1
            if self._lost == 1:
                logger.error("the webhook takes nothing: events are lost; GET /v1/events has the last ones")

    def stop(self, seconds: float = 2.0) -> None:
        """What waits is sent if that is quick."""
        self._ending.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        while not (self._ending.is_set() and self._waiting.empty()):
            try:
                event = self._waiting.get(timeout=0.2)
            except Empty:
                continue
            self._deliver(event)

    def _deliver(self, event: SandboxEvent) -> None:
        body = json.dumps(dataclasses.asdict(event)).encode()
        why = ""
        for pause in (*PAUSES, None):
            why = self._try(event, body)
            if not why:
                if self._lost:
                    logger.warning("the webhook takes events again; %d were lost", self._lost)
                    self._lost = 0
                return
            if pause is None or self._ending.wait(pause):
                break
        self._lost += 1
        logger.error("the webhook did not take %s of %s: %s", event.change, event.sandbox or "nothing", why)

    def _try(self, event: SandboxEvent, body: bytes) -> str:
        """Empty when it was taken, else why not."""
        try:
            secret = read_private(self._secret_file).strip()
        except PrivateFileError as error:
            return f"its secret cannot be read: {error}"
        if len(secret) < LEAST_SECRET:
            return f"its secret has fewer than {LEAST_SECRET} bytes"
        at = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "coatcheck",
            "Coatcheck-Event": event.change.value,
            "Coatcheck-Signature": signature(secret, at, body),
            "Connection": "close",
        }
        connection = self._connection()
        try:
            connection.request("POST", self._target, body, headers)
            answer = connection.getresponse()
            answer.read(MAX_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            return str(error) or type(error).__name__
        finally:
            connection.close()
        return "" if 200 <= answer.status < 300 else f"status {answer.status}"

    def _connection(self) -> http.client.HTTPConnection:
        host = self._url.hostname or ""
        if self._tls is not None:
            return http.client.HTTPSConnection(
                host, self._url.port, timeout=ANSWER_SECONDS, context=self._tls
            )
        return http.client.HTTPConnection(host, self._url.port, timeout=ANSWER_SECONDS)

    @property
    def _target(self) -> str:
        return (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
