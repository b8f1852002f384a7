"""The requests of an audit log, one after the other in bounded memory, for `policy replay` and `learn`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coatcheck.decision.denial import Reason
from coatcheck.decision.host import HostRefused, split_authority
from coatcheck.decision.message import Destination
from coatcheck.telemetry.audit import file as audit_file
from coatcheck.telemetry.events import Outcome
from coatcheck.telemetry.repeats import ALLOWED_BEFORE

_MASKS = ("***", "[masked]", " [cut, ")
"""What stands in a record for a handle, and behind what was too long for one."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One decision, as far as the log holds it: no query, no header, no body, no grant of the session."""

    at: float
    request_id: str
    session: str
    tenant: str
    policy: str
    policy_hash: str
    outcome: Outcome
    reason: Reason | None
    detail: str
    rule: str
    credentials: tuple[str, ...]
    method: str
    destination: Destination | None
    """None where it was refused before it was known."""
    path: str
    origin: str
    whole: bool
    """Method and path are as they were: nothing was masked or cut."""


@dataclass(slots=True)
class Tally:
    """What else was in the files."""

    requests: int = 0
    repeated: int = 0
    """Refusals that the log holds as counts only."""
    unreadable: int = 0
    """Lines that are no records, or that say what no record of ours does."""
    first: float = 0.0
    last: float = 0.0


def recorded_requests(paths: Iterable[Path], tally: Tally) -> Iterator[RecordedRequest]:
    """The requests in `paths`, each a log whose rotated files are read, too, or one of those files.

    A request that was let through and failed on its way counts once. FileNotFoundError where no log is.
    """
    for path in paths:
        files = audit_file.log_files(path)
        if not files:
            raise FileNotFoundError(2, "there is no audit log", str(path))
        for file in files:
            for line in audit_file.lines(file):
                found = _request(line, tally)
                if found is not None:
                    tally.requests += 1
                    tally.first = min(tally.first or found.at, found.at)
                    tally.last = max(tally.last, found.at)
                    yield found


def _request(line: bytes, tally: Tally) -> RecordedRequest | None:
    try:
        record = audit_file.parse(line)
        if record["type"] == "repeated" and record.get("what") == "decision":
            tally.repeated += int(record["count"])
        if record["type"] != "decision":
            return None
        found = _read(record)
    except (ValueError, KeyError, TypeError, RecursionError):
        tally.unreadable += 1
        return None
    return None if found.reason in ALLOWED_BEFORE else found


def _read(record: dict[str, Any]) -> RecordedRequest:
    texts, credentials = {name: record[name] for name in _TEXTS}, record["credentials"]
    if not isinstance(credentials, list) or not all(
        isinstance(value, str) for value in (*texts.values(), *credentials)
    ):
        raise ValueError("no text")
    reason = record["reason"]
    return RecordedRequest(
        at=float(record["at"]),
        outcome=Outcome(record["outcome"]),
        reason=None if reason is None else Reason(reason),
        credentials=tuple(credentials),
        destination=_destination(record["destination"]),
        whole=not any(mask in text for mask in _MASKS for text in (texts["path"], texts["method"])),
        **texts,
    )


_TEXTS = (
    "request_id", "session", "tenant", "policy", "policy_hash", "detail", "rule", "method", "path", "origin",
)  # fmt: skip


def _destination(url: str) -> Destination | None:
    scheme, separator, authority = url.partition("://")
    if not separator or scheme not in {"http", "https"}:
        return None
    try:
        host, port = split_authority(authority, 443 if scheme == "https" else 80)
    except HostRefused:
        return None
    return Destination(scheme, host, port)
