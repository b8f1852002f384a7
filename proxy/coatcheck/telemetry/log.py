"""Structured logs on stderr, JSON or for people, with a last look for credentials before each line.

Nothing of a request belongs into a log message; the masking here is for the day when it gets there:
an exception's text, a library's warning, mitmproxy's `Unexpected data from server: b'…'`.
"""

import json
import logging
import sys
import threading
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from coatcheck.telemetry.event_table import TABLE
from coatcheck.telemetry.events import Event
from coatcheck.telemetry.log_file import LogFile
from coatcheck.telemetry.redaction import mask, mask_bytes_literals, printable

MESSAGE_CHARACTERS = 2000
"""Of one message, or of one exception's text: a library that prints a whole body fills no disk."""

FRAMES = 30
"""Of one traceback; recursion would write thousands."""


class LogFormat(StrEnum):
    JSON = "json"
    HUMAN = "human"


def configure(
    format: LogFormat,  # noqa: A002
    level: str,
    stream: TextIO | None = None,
    file: Path | None = None,
) -> None:
    """Send all logging to `stream` (default stderr) in `format`, and to `file`; `level` (a logging name) is
    Coatcheck's own.

    Libraries stay at WARNING whatever `level` says: at INFO mitmproxy writes URLs, and at DEBUG botocore
    and urllib3 write credentials.
    """
    handlers: list[logging.Handler] = [logging.StreamHandler(stream or sys.stderr)]
    if file is not None:
        handlers.append(LogFile(file))
    for handler in handlers:
        handler.setFormatter(_Formatter(format))
    root = logging.getLogger()
    root.handlers[:] = handlers
    root.setLevel(logging.WARNING)
    logging.getLogger("coatcheck").setLevel(level.upper())
    logging.getLogger("mitmproxy").setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
    # What nobody caught would print itself past the masking.
    sys.excepthook = _uncaught
    threading.excepthook = lambda args: _uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def _uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    info = (kind, error or kind(), trace)
    logging.getLogger("coatcheck").critical("uncaught exception", exc_info=info)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the log as it may be written anywhere: masked, bounded, on one line."""

    at: float
    level: int
    logger: str
    message: str
    exception: tuple[str, ...]


def line(record: logging.LogRecord) -> LogLine:
    """`record`, put together here and now: its arguments may change later."""
    try:
        message = _clean(record.getMessage())
    except Exception:  # noqa: BLE001 - a wrong number of arguments must not print them
        message = "a log message could not be put together"
    error = record.exc_info[1] if record.exc_info else None
    trace = tuple(_traceback(error)) if error is not None else ()
    return LogLine(record.created, record.levelno, printable(record.name), message, trace)


class _Formatter(logging.Formatter):
    """One record as one line (JSON), or as one line and an indented traceback (human)."""

    def __init__(self, format: LogFormat) -> None:  # noqa: A002
        super().__init__()
        self._json = format is LogFormat.JSON

    def format(self, record: logging.LogRecord) -> str:
        told = line(record)
        at = datetime.fromtimestamp(told.at, UTC).isoformat(timespec="milliseconds")
        level = record.levelname.lower()
        if self._json:
            fields: dict[str, Any] = {
                "at": at,
                "level": level,
                "logger": told.logger,
                "message": told.message,
            }
            if told.exception:
                fields["exception"] = told.exception
            return json.dumps(fields)
        head = f"{at} {level:<8} {told.logger}: {told.message}"
        return "\n".join([head, *(f"    {part}" for part in told.exception)])


def _clean(text: str) -> str:
    """`text` without credentials, bytes of traffic and control characters, on one bounded line."""
    if len(text) > MESSAGE_CHARACTERS:
        # Cut first: the patterns are linear, and still a megabyte of them is time.
        text = f"{text[:MESSAGE_CHARACTERS]} [cut, {len(text)} characters]"
    return printable(mask(mask_bytes_literals(text)))


def _traceback(error: BaseException) -> list[str]:
    """Where it happened and what it was, causes first; no locals, no source text."""
    parts: list[str] = []
    seen: set[int] = set()
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(chain) < 5:
        seen.add(id(link))
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    for each in reversed(chain):
        frames = traceback.extract_tb(each.__traceback__, limit=-FRAMES)
        parts += [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
        parts.append(_clean(f"{type(each).__name__}: {each}"))
    return parts


_events = logging.getLogger("coatcheck.events")


def log_event(event: Event) -> None:
    """The log's view of an event: alarms and failures stand out, single requests only at debug."""
    log = TABLE[type(event)].log
    if log is None or not _events.isEnabledFor(log.most or log.least):
        return
    said = log.line(event)
    if said is not None:
        _events.log(said.level, said.message, *said.arguments)
