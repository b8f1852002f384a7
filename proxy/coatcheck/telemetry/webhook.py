"""Events of sandboxes and approvals, sent to a URL that the operator names, signed (Standard Webhooks)."""

import base64
import binascii
import dataclasses
import hashlib
import hmac
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Final

import standardwebhooks

from coatcheck.platform.http_client import Deadline, HttpClient, HttpFailure, tls_context
from coatcheck.platform.private_files import PrivateFileError, read_private
from coatcheck.telemetry.event_table import TABLE, Delivered
from coatcheck.telemetry.events import Event

logger = logging.getLogger(__name__)

WAITING: Final = 1024
"""Events of one kind that may wait while the other side is down; what comes then is lost, and that is said in
the log."""
PAUSES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds between tries: a receiver that restarts takes less than the minute that these are together."""
LEAST_SECRET: Final = 16
"""Bytes of the key."""
_PREFIX: Final = b"whsec_"
ANSWER_SECONDS: Final = 10.0
"""From looking the receiver up to its answer's last byte."""
MAX_ANSWER: Final = 64 * 1024
"""Bytes that are read of an answer; only its status counts."""


def signed(secret: bytes, identifier: str, at: int, body: bytes) -> dict[str, str]:
    """The headers that prove a message. ValueError: the secret is none.

    `whsec_…` is a key in base64; any other secret is the key itself.
    """
    key = secret
    if secret.startswith(_PREFIX):
        try:
            key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            raise ValueError("its secret has no base64 after whsec_") from None
    if len(key) < LEAST_SECRET:
        raise ValueError(f"its secret has fewer than {LEAST_SECRET} bytes")
    time_of = datetime.fromtimestamp(at, UTC)
    return {
        "webhook-id": identifier,
        "webhook-timestamp": str(at),
        "webhook-signature": standardwebhooks.Webhook(key).sign(identifier, time_of, body.decode()),
        "Coatcheck-Signature": _deprecated(secret, at, body),
    }


def _deprecated(secret: bytes, at: int, body: bytes) -> str:
    """What receivers of the first release check. It goes with the next one."""
    mac = hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={mac}"


def webhook(url: str | None, secret_file: Path | None) -> "Webhook | None":
    """What the settings ask for."""
    return None if url is None or secret_file is None else Webhook(url, secret_file)


class Webhook:
    """One URL."""

    def __init__(self, url: str, secret_file: Path, ca_file: Path | None = None) -> None:
        """`secret_file` is read for each event, so that it can be rotated; only its owner may read it."""
        self._url = url
        self._secret_file = secret_file
        self._http = HttpClient(tls_context(ca_file, machine=True))
        # A request that waits for a yes has two minutes: news of sandboxes must not hold its question up.
        self._lines = {each: _Line(self._try) for each in TABLE if delivers(each)}

    def start(self) -> None:
        for line in self._lines.values():
            line.thread.start()

    def put(self, event: Event) -> None:
        """Never waits."""
        self._lines[type(event)].put(event)

    def stop(self, seconds: float = 2.0) -> None:
        """What waits is sent if that is quick."""
        deadline = time.monotonic() + seconds
        for line in self._lines.values():
            line.ending.set()
        for line in self._lines.values():
            if line.thread.ident is not None:  # a daemon that did not start stops, too
                line.thread.join(max(deadline - time.monotonic(), 0))

    def _try(self, identifier: str, event: Event) -> str:
        """Empty when it was taken, else why not."""
        body = json.dumps(dataclasses.asdict(event)).encode()
        try:
            secret = read_private(self._secret_file).strip()
        except PrivateFileError as error:
            return f"its secret cannot be read: {error}"
        headers = {"Content-Type": "application/json", "Coatcheck-Event": _delivered(event).name}
        try:
            headers |= signed(secret, identifier, int(time.time()), body)
        except ValueError as error:
            return str(error)
        deadline = Deadline(ANSWER_SECONDS, MAX_ANSWER)
        try:
            answer = self._http.exchange_once(deadline, "POST", self._url, headers, body, cut=True)
        except HttpFailure as why:
            return str(why)
        return "" if 200 <= answer.status < 300 else f"status {answer.status}"


class _Line:
    """Events of one kind, one after the other, in a thread of their own."""

    def __init__(self, send: Callable[[str, Event], str]) -> None:
        """`send` says why an event, with its identifier, was not taken; empty: it was."""
        self._send = send
        self._waiting: Queue[Event] = Queue(WAITING)
        self._lost = 0
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self._run, name="webhook", daemon=True)

    def put(self, event: Event) -> None:
        try:
            self._waiting.put_nowait(event)
        except Full:
            self._lost += 1
            if self._lost == 1:
                logger.error(
                    "the webhook takes nothing: events are lost; GET /v1/events has the last ones of"
                    " sandboxes, GET /v1/approvals what waits"
                )

    def _run(self) -> None:
        while not (self.ending.is_set() and self._waiting.empty()):
            try:
                event = self._waiting.get(timeout=0.2)
            except Empty:
                continue
            self._deliver(event)

    def _deliver(self, event: Event) -> None:
        why, identifier = "", f"msg_{secrets.token_hex(12)}"  # the same for each try
        for pause in (*PAUSES, None):
            try:
                why = self._send(identifier, event)
            except Exception as error:  # noqa: BLE001 - one that cannot be sent must not end those behind it
                why, pause = type(error).__name__, None
            if not why:
                if self._lost:
                    logger.warning("the webhook takes events again; %d were lost", self._lost)
                    self._lost = 0
                return
            if pause is None or self.ending.wait(pause):
                break
        self._lost += 1
        logger.error("the webhook did not take %s of %s: %s", *_delivered(event), why)


def delivers(event: type) -> bool:
    """Whether events of this class are sent."""
    return TABLE[event].webhook is not None


def _delivered(event: Event) -> Delivered:
    named = TABLE[type(event)].webhook
    if named is None:
        raise TypeError(f"{type(event).__name__} is no event for the webhook")
    return named(event)
