"""The audit log's files: opened safely, locked, and read back after a crash.

`audit.jsonl` is written; full ones are renamed to `audit-<first seq>.jsonl` and never touched again.
Nothing here deletes: how long records are kept is the operator's decision.
"""

import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coatcheck.platform.private_files import PrivateFileError, open_private_directory
from coatcheck.telemetry.audit.record import GENESIS, LINE_BYTES

TORN_BYTES = 10 * LINE_BYTES
"""A longer tail without a newline was not written by us, and is not cut off without a person's word."""


class AuditUnavailable(Exception):
    """A record could not be written. The caller refuses the request (I8): nothing may leave untold."""


@dataclass(frozen=True, slots=True)
class End:
    """Where an existing log ends."""

    log: str = ""
    """The log's id, from the first record of its file; empty for a new log."""
    seq: int = 0
    prev: str = GENESIS
    """The SHA-256 of the last whole line."""
    first_seq: int = 1
    """The first record's seq in the current file."""
    size: int = 0
    """Bytes of whole lines in the current file."""
    torn: bytes = b""
    """What stands after the last newline: a record that a crash cut short."""
    state_version: int = 0
    """The greatest state version that the current file tells of."""


def open_directory(directory: Path) -> None:
    """Make `directory` (0700), or refuse one that others may enter: names and hosts are in the log."""
    try:
        open_private_directory(directory)
    except PrivateFileError as error:
        raise AuditUnavailable(
            f"{error}; give the audit log a directory of its own, or: {error.hint}"
        ) from error


def lock(path: Path) -> int:
    """A descriptor that holds the log's lock until it is closed: two daemons never share one chain."""
    fd = os.open(
        path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise AuditUnavailable(
            f"a daemon (pid {holder}) already runs here, with the log {path}; see coatcheck status, stop it,"
            " or give this one a state directory of its own (--state-dir)"
        ) from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def open_current(path: Path, *, new: bool = False) -> int:
    """A descriptor that appends to `path`, a regular file of ours with mode 0600.

    `new` demands that it does not exist yet: a rotation must not continue somebody's file.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_EXCL if new else 0)
    fd = os.open(path, flags, 0o600)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(fd)
        raise AuditUnavailable(f"{path} is not a regular file of the daemon; move it away and start again")
    if found.st_mode & 0o077:
        os.fchmod(fd, 0o600)
    return fd


def sync_directory(directory: Path) -> None:
    """Make a rename or a new file in `directory` survive a power cut."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def rotated_name(path: Path, first_seq: int) -> Path:
    """Where the file that began with record `first_seq` goes; names sort in the chain's order."""
    return path.with_name(f"{path.stem}-{first_seq:016d}{path.suffix}")


def log_files(path: Path) -> list[Path]:
    """The log's files, oldest first, the current one last if it exists."""
    digits = "[0-9]" * 16
    rotated = sorted(path.parent.glob(f"{path.stem}-{digits}{path.suffix}"))
    return [*rotated, path] if path.exists() else rotated


def lines(path: Path) -> Iterator[bytes]:
    """The file's lines, newline included; a torn or oversized piece comes without one. Bounded memory."""
    with path.open("rb") as file:
        while line := file.readline(LINE_BYTES + 1):
            yield line


def parse(line: bytes) -> dict[str, Any]:
    """A line as a record. ValueError when it is none."""
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError("not an object")
    seq, prev, kind = record.get("seq"), record.get("prev"), record.get("type")
    if type(seq) is not int or not isinstance(prev, str) or not isinstance(kind, str):
        raise ValueError("no seq, prev or type")
    return record


def read_end(path: Path) -> End:
    """Where the log at `path` ends, reading the current file once (and the last full one if needed)."""
    end = _read_file(path) if path.exists() else End()
    if end.seq:
        return end
    # A crash between the rename and the first record of a rotation: the chain's end is in the last full file.
    for full in reversed(log_files(path)):
        if full != path:
            last = _read_file(full)
            return End(last.log, last.seq, last.prev, last.seq + 1, 0, end.torn, last.state_version)
    return end


def _read_file(path: Path) -> End:
    first, last, size, version, torn = b"", b"", 0, 0, b""
    for line in lines(path):
        if not line.endswith(b"\n"):
            torn += line
            if len(torn) > TORN_BYTES:
                raise AuditUnavailable(
                    f"{path} ends in bytes that no audit log has; move it away and start again"
                )
            continue
        if torn:
            raise AuditUnavailable(
                f"{path} holds an oversized line; run `coatcheck audit verify`, then move it away"
            )
        first, last, size = first or line, line, size + len(line)
        if b'"state_version":' in line:  # cannot be forged inside a text: quotes are escaped there
            version = max(version, _state_version(line))
    if not last:
        return End(torn=torn)
    try:
        opening, closing = parse(first), parse(last)
        log = str(opening["log"])
    except (ValueError, KeyError) as error:
        raise AuditUnavailable(
            f"{path} cannot be read as an audit log; run `coatcheck audit verify`, then move it away"
        ) from error
    prev = hashlib.sha256(last).hexdigest()
    return End(log, closing["seq"], prev, opening["seq"], size, torn, version)


def _state_version(line: bytes) -> int:
    try:
        version = parse(line).get("state_version")
    except ValueError:
        return 0
    return version if type(version) is int else 0


def last_seq(path: Path) -> int:
    """The greatest seq in a file of checkpoints; 0 when there is none. Torn lines are passed over."""
    greatest = 0
    if path.exists():
        for line in lines(path):
            try:
                greatest = max(greatest, parse(line)["seq"])
            except ValueError:
                continue
    return greatest
