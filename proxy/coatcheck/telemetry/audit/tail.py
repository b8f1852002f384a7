"""The audit log for people: one line a record (`coatcheck audit tail`), the newest last."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import IO, Any

from coatcheck.telemetry.audit import file as audit_file
from coatcheck.telemetry.audit.record import LINE_BYTES
from coatcheck.telemetry.redaction import printable

POLL_SECONDS = 0.25
"""How often a followed log is looked at: as fast as a person reads, and no load."""


@dataclass(frozen=True, slots=True)
class Filters:
    """What to show; None shows all. Texts compare whole, so that no pattern can hide a record."""

    type: str | None = None
    outcome: str | None = None
    reason: str | None = None
    session: str | None = None
    tenant: str | None = None
    since: float | None = None
    """Unix time, seconds."""

    def admit(self, record: dict[str, Any]) -> bool:
        for name in ("type", "outcome", "reason", "session", "tenant"):
            wanted = getattr(self, name)
            if wanted is not None and record.get(name) != wanted:
                return False
        at = record.get("at")
        return self.since is None or (isinstance(at, float) and at >= self.since)


def tail(
    path: Path, *, follow: bool = False, filters: Filters | None = None, last: int | None = 50
) -> Iterator[str]:
    """`records(…)`, rendered one line each."""
    return map(render, records(path, follow=follow, filters=filters, last=last))


def records(
    path: Path, *, follow: bool = False, filters: Filters | None = None, last: int | None = 50
) -> Iterator[dict[str, Any]]:
    """The log's `last` records that `filters` admits (None: all, rotated files included), oldest first.

    With `follow` it goes on until the caller stops, across rotations. Lines that do not read as records
    are left out: `audit verify` speaks about those. FileNotFoundError when there is no log.
    """
    admit = (filters or Filters()).admit
    files = audit_file.log_files(path)
    if not files:
        raise FileNotFoundError(f"there is no audit log at {path}")
    file: IO[bytes] = files[-1].open("rb")
    try:
        # The file before too: right after a rotation the current one is all but empty.
        older = files[:-1] if last is None else files[-2:-1]
        found = filter(admit, chain(chain.from_iterable(map(_records, older)), _whole_lines(file)))
        yield from found if last is None else deque(found, maxlen=last)
        while follow:
            following = _next_file(file, path)  # asked first: what is read next is then all that it had
            yield from filter(admit, _whole_lines(file))
            if following is None:
                time.sleep(POLL_SECONDS)
            else:
                file.close()
                file = following
    finally:
        file.close()


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        yield from _whole_lines(file)


def _whole_lines(file: IO[bytes]) -> Iterator[dict[str, Any]]:
    """The records up to the end of the file; a line that is still being written is left for later."""
    while line := file.readline(LINE_BYTES + 1):
        if not line.endswith(b"\n"):
            if len(line) <= LINE_BYTES:
                file.seek(-len(line), os.SEEK_CUR)
                return
            continue
        try:
            yield audit_file.parse(line)
        except ValueError:
            continue


def _next_file(file: IO[bytes], path: Path) -> IO[bytes] | None:
    """The file after `file`, opened; None while there is none. One at a time: none is skipped."""
    mine = os.fstat(file.fileno())
    try:
        files = audit_file.log_files(path)
        places = [place for place, other in enumerate(files) if os.path.samestat(other.stat(), mine)]
        if not places or places[-1] + 1 == len(files):
            return None
        return files[places[-1] + 1].open("rb")
    except FileNotFoundError:
        return None  # in the middle of a rotation


def render(record: dict[str, Any]) -> str:
    """`record` as one printable line: time, what happened, why, who, what about. No colours."""
    # Values were chosen by strangers: escaped again here, since JSON gave the control characters back.
    get = {name: printable(_plain(value)) for name, value in record.items()}.get
    head, rest = _parts(record.get("type", ""), lambda name: get(name, ""))
    return f"{_when(record.get('at'))}  {head:<12}  " + "  ".join(part for part in rest if part)


def _when(at: object) -> str:
    if isinstance(at, float) and 0 <= at < 253_402_300_800:  # the year 10000, which strftime cannot say
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    return "?" * 24


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    return "" if value is None else str(value)


def _parts(kind: str, get: Callable[[str], str]) -> tuple[str, list[str]]:
    who = "/".join(part for part in (get("tenant"), get("session")) if part) or "-"
    match kind:
        case "decision":
            rule = f"rule={get('rule')}" if get("rule") else ""
            credentials = f"credentials={get('credentials')}" if get("credentials") else ""
            alarm = "ALARM" if get("alarm") == "True" else ""
            what = f"{get('method')} {get('destination')}{get('path')}"
            return get("outcome"), [get("reason"), alarm, who, what, rule, credentials, get("detail")]
        case "completion":
            size = f"{get('bytes_up')} bytes up, {get('bytes_down')} down"
            aborted = f"aborted={get('aborted')}" if get("aborted") else ""
            scrubbed = f"scrubbed={get('scrubbed')}" if get("scrubbed") not in ("", "0") else ""
            return "done", [
                get("status"),
                aborted,
                who,
                size,
                f"{get('seconds')} s",
                scrubbed,
                get("request_id"),
            ]
        case "session":
            by = f"by={get('caller')}" if get("caller") else ""
            return get("change"), [who, get("subject"), f"policy={get('policy')}", by, get("detail")]
        case "usage":
            size = f"{get('bytes_up')} bytes up, {get('bytes_down')} down"
            return "usage", [who, get("subject"), f"{get('requests')} requests", size, f"{get('seconds')} s"]
        case "alarm":
            return "ALARM", [get("reason"), who, get("credential"), get("detail")]
        case "repeated":
            return "repeated", [get("reason"), who, f"{get('count')} more of type {get('what')}"]
        case "policy":
            what = "loaded" if get("loaded") == "True" else "REFUSED"
            return "policy", [what, get("name"), get("sha256")[:16], get("detail")]
        case "sandbox":
            by = f"by={get('caller')}" if get("caller") else ""
            whose = "/".join(part for part in (get("tenant"), get("subject")) if part)
            return "sandbox", [get("change"), get("sandbox"), whose, get("ending"), by, get("detail")]
        case "shadow":
            what = f"{get('method')} {get('destination')}{get('path')}"
            now, then = f"now: {get('active')}", f"candidate: {get('candidate')}"
            more = f"({get('unrecorded')} more)" if get("unrecorded") not in ("", "0") else ""
            return "shadow", [get("change"), who, what, now, then, more]
        case "approval":
            what = f"{get('method')} {get('destination')}{get('path')}"
            by = f"by={get('approver')}" if get("approver") else ""
            return get("change"), [get("approval"), who, what, f"rule={get('rule')}", by]
        case "slow_decision":
            return "slow", [who, f"{get('seconds')} s", f"{get('count')} since the last"]
        case "inspection":
            searched = f"{get('bytes')} bytes, {get('findings')} findings"
            by = f"by={get('caller')}"
            return "inspection", [get("result"), get("sandbox"), searched, by, get("statement")[:16]]
        case "daemon":
            return "daemon", [get("what"), get("detail")]
        case "log":
            lost = [
                f"{name}={get(name)}" for name in ("torn_bytes", "missing", "lost", "previous") if get(name)
            ]
            return "log", [get("what"), *lost]
        case "checkpoint":
            return "checkpoint", [f"seq={get('seq')}", f"key={get('key')}"]
        case _:
            return "?", [printable(kind)]
