"""The audit log: hash-chained JSON lines, written before the first upstream byte (I8).

`write` hands the record to the kernel before it returns, so it survives `kill -9` of the daemon. A
thread flushes to disk in groups, signs checkpoints and rotates. What cannot be written is refused:
AuditUnavailable, and the caller lets nothing leave.
"""

import asyncio
import hashlib
import logging
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from coatcheck.telemetry import audit_file, audit_record
from coatcheck.telemetry.audit_file import AuditUnavailable
from coatcheck.telemetry.checkpoint import CheckpointSigner, CheckpointSink
from coatcheck.telemetry.events import Event, SessionEvent

__all__ = ["AuditLog", "AuditUnavailable", "Recovery"]

_log = logging.getLogger("coatcheck.audit")

CHECKPOINT_RECORDS = 1000
"""A checkpoint at least every so many records: signing costs ~50 µs, so ~0.05 µs a record."""

CHECKPOINT_SECONDS = 5.0
"""… and at the latest so long after a record: what can be cut off unseen is at most this much."""

MAX_BYTES = 256 * 1024 * 1024
"""A file is rotated at about this size: some 400,000 requests, which a reader still opens."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was found at the start: the daemon tells of it, a security team wants to know."""

    continued: bool
    """False: a new log was begun."""
    torn_bytes: int
    """Bytes of a record that a crash cut short; moved into the first new record."""
    missing: int
    """Records that the second sink's checkpoints vouch for and the log does not have: it was truncated
    or rolled back."""


class AuditLog:
    """An append-only, hash-chained log in `path`, which must be in a directory of its own (0700).

    `signer` None: no checkpoints. `second_sink`: a file elsewhere, or a callable that takes each
    checkpoint's line (bytes, newline included) and may block its own thread. `flush_seconds`: the
    longest a record waits for the disk. Thread-safe. Raises AuditUnavailable when it cannot begin.
    """

    def __init__(
        self,
        path: Path,
        *,
        signer: CheckpointSigner | None = None,
        second_sink: Callable[[bytes], None] | Path | None = None,
        flush_seconds: float = 0.1,
        checkpoint_records: int = CHECKPOINT_RECORDS,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._signer = signer
        self._flush_seconds = flush_seconds
        self._checkpoint_records, self._checkpoint_seconds = checkpoint_records, checkpoint_seconds
        self._max_bytes = max_bytes
        self._clock = clock
        self._counts: Counter[str] = Counter()
        self._waiters: list[tuple[int, Future[None]]] = []
        self._lock = threading.Lock()
        self._failed = ""
        self._lost = 0
        self._unsigned, self._signed_at = 0, time.monotonic()
        self._seq, self._prev, self._size, self._state_version = 0, "", 0, 0
        try:
            audit_file.open_directory(path.parent)
            self._guard = audit_file.lock(path)
        except OSError as error:
            raise AuditUnavailable(f"cannot open the audit log {path}: {error.strerror}") from error
        self._fd = -1
        try:
            self.recovery, checkpoint = self._begin(second_sink if isinstance(second_sink, Path) else None)
        except BaseException as error:
            if self._fd >= 0:
                os.close(self._fd)
            os.close(self._guard)
            if isinstance(error, OSError):
                raise AuditUnavailable(f"cannot open the audit log {path}: {error.strerror}") from error
            raise
        self._sink = CheckpointSink(second_sink) if signer and second_sink else None
        if self._sink:
            self._sink.offer(checkpoint)
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._keep_flushing, name="audit-flush", daemon=True)
        self._thread.start()

    # --- what the rest of the daemon calls ---------------------------------------------------------

    def write(self, event: Event) -> None:
        """Append `event`; when this returns, the kernel has it. AuditUnavailable when it does not."""
        try:
            kind, fields = audit_record.body(event)
        except Exception as error:
            raise AuditUnavailable(f"a {type(event).__name__} cannot be written as a record") from error
        with self._lock:
            if self._lost and not self._failed:
                self._append_own("resumed", lost=self._lost)
                self._lost = 0
            try:
                self._append(kind, fields)
            except AuditUnavailable:
                self._lost += 1
                raise
            if type(event) is SessionEvent and event.state_version > self._state_version:
                self._state_version = event.state_version

    async def wait_durable(self) -> None:
        """Return once everything written so far is on the disk. AuditUnavailable when the disk fails."""
        with self._lock:
            if self._failed:
                raise AuditUnavailable(self._failed)
            if self._durable >= self._seq:
                return
            done: Future[None] = Future()
            self._waiters.append((self._seq, done))
        self._wake.set()
        await asyncio.wrap_future(done)

    def last_state_version(self) -> int:
        """The greatest state version that the log tells of. A state directory behind it was rolled back."""
        return self._state_version

    @property
    def counts(self) -> Mapping[str, int]:
        """Records written by this process, by type."""
        return dict(self._counts)

    @property
    def second_sink_failures(self) -> int:
        """Checkpoints that did not reach the second sink."""
        return self._sink.failures if self._sink else 0

    @property
    def failed(self) -> str:
        """Why the log is out of use until a restart; empty while it works."""
        return self._failed

    def close(self) -> None:
        """Sign, flush and close. Nothing can be written afterwards."""
        self._closing = True
        self._wake.set()
        self._thread.join()
        with self._lock:
            if not self._failed:
                self._failed = "the audit log is closed"
            os.close(self._fd)
            os.close(self._guard)
        if self._sink:
            self._sink.close()

    # --- appending: the lock is held --------------------------------------------------------------

    def _append(self, kind: str, fields: str) -> bytes:
        if self._failed:
            raise AuditUnavailable(self._failed)
        line = audit_record.line(self._seq + 1, self._prev, kind, fields)
        try:
            written = os.write(self._fd, line)
        except OSError as error:
            raise AuditUnavailable(f"cannot write the audit log {self._path}: {error.strerror}") from error
        if written != len(line):
            self._take_back()
            raise AuditUnavailable(f"cannot write the audit log {self._path}: no space left")
        self._prev = hashlib.sha256(line).hexdigest()
        self._seq += 1
        self._size += written
        self._unsigned += 1
        self._counts[kind] += 1
        return line

    def _take_back(self) -> None:
        """Remove the half record that a full disk left: the next one must not be glued to it."""
        try:
            os.ftruncate(self._fd, self._size)
        except OSError as error:
            self._fail(f"half a record stands in {self._path} ({error.strerror}); make room, then restart")

    def _append_own(self, what: str, **fields: str | float) -> None:
        own = audit_record.own_body(
            at=self._clock(),
            what=what,
            log=self._id,
            first=self._first_seq,
            state_version=self._state_version,
            **fields,
        )
        self._append(audit_record.LOG, own)

    def _append_checkpoint(self, signer: CheckpointSigner) -> bytes:
        at = self._clock()
        signature = signer.sign(self._id, self._seq + 1, self._prev, at)
        fields = audit_record.own_body(at=at, log=self._id, key=signer.key_id, signature=signature)
        line = self._append(audit_record.CHECKPOINT, fields)
        self._unsigned, self._signed_at = 0, time.monotonic()
        return line

    def _fail(self, why: str) -> None:
        self._failed = why
        _log.critical("audit log out of use, every request is refused: %s", why)

    # --- the start ----------------------------------------------------------------------------------

    def _begin(self, checkpoints: Path | None) -> tuple[Recovery, bytes]:
        end = audit_file.read_end(self._path)
        self._fd = audit_file.open_current(self._path)
        if end.torn:
            os.ftruncate(self._fd, end.size)
        self._seq, self._prev, self._size, self._first_seq = end.seq, end.prev, end.size, end.first_seq
        self._state_version = end.state_version
        self._id = end.log or secrets.token_hex(8)
        known = _last_checkpoint(checkpoints) if checkpoints else 0
        recovery = Recovery(bool(end.seq), len(end.torn), max(0, known - end.seq))
        details: dict[str, str | float] = {}
        if end.torn:
            torn = end.torn[: audit_record.FIELD_BYTES].decode("latin-1")
            details |= {"torn_bytes": len(end.torn), "torn": torn}
        if recovery.missing:
            details["missing"] = recovery.missing
            _log.critical(
                "the audit log %s was truncated or rolled back: it ends at record %d, its checkpoints at %d",
                self._path, end.seq, known,
            )  # fmt: skip
        what = "recovered" if details else "continued" if end.seq else "opened"
        with self._lock:
            self._append_own(what, **details)
            checkpoint = self._append_checkpoint(self._signer) if self._signer else b""
        os.fsync(self._fd)
        audit_file.sync_directory(self._path.parent)
        self._durable = self._seq
        return recovery, checkpoint

    # --- the thread ---------------------------------------------------------------------------------

    def _keep_flushing(self) -> None:
        while True:
            self._wake.wait(self._flush_seconds)
            self._wake.clear()
            closing = self._closing
            try:
                self._flush(closing)
            except Exception as error:  # noqa: BLE001 - whatever broke, requests must be refused from here on
                with self._lock:
                    if not self._failed:
                        self._fail(f"flushing {self._path} failed ({error}); mend the disk, then restart")
            self._answer_waiters()
            if closing:
                return

    def _flush(self, closing: bool) -> None:
        checkpoint = b""
        with self._lock:
            if self._failed:
                return
            # Less than we wrote: truncated, or copied away by logrotate. More: somebody else writes.
            found = os.fstat(self._fd)
            if found.st_size != self._size or found.st_nlink != 1:
                self._fail(f"{self._path} was changed or removed beneath us; keep what is left, then restart")
                return
            if self._signer and self._checkpoint_due(closing):
                try:
                    checkpoint = self._append_checkpoint(self._signer)
                except AuditUnavailable as error:
                    _log.error("no checkpoint: %s", error)
            seq, full = self._seq, self._size >= self._max_bytes
        if seq > self._durable:
            os.fdatasync(self._fd)
            self._durable = seq
        # Only now: a checkpoint elsewhere must never be ahead of what a power cut leaves here.
        if checkpoint and self._sink:
            self._sink.offer(checkpoint)
        if full and not closing:
            self._rotate()

    def _checkpoint_due(self, closing: bool) -> bool:
        if not self._unsigned:
            return False
        waited = time.monotonic() - self._signed_at
        return closing or self._unsigned >= self._checkpoint_records or waited >= self._checkpoint_seconds

    def _rotate(self) -> None:
        full = audit_file.rotated_name(self._path, self._first_seq)
        with self._lock:
            if full.exists():
                self._fail(f"{full} exists already; move it away, then restart")
                return
            os.rename(self._path, full)
            try:
                fd = audit_file.open_current(self._path, new=True)
            except (OSError, AuditUnavailable) as error:
                os.rename(full, self._path)
                _log.error("cannot rotate the audit log (%s); going on in the full file", error)
                return
            old, self._fd = self._fd, fd
            self._size, self._first_seq = 0, self._seq + 1
            try:
                self._append_own("rotated", previous=full.name)
            except AuditUnavailable as error:
                self._fail(f"{error}; make room, then restart")
        try:
            os.fsync(old)
        finally:
            os.close(old)
        audit_file.sync_directory(self._path.parent)

    def _answer_waiters(self) -> None:
        with self._lock:
            due = [done for seq, done in self._waiters if self._failed or seq <= self._durable]
            self._waiters = [] if self._failed else [w for w in self._waiters if w[0] > self._durable]
        for done in due:
            # A waiter that was cancelled meanwhile takes no answer.
            if done.set_running_or_notify_cancel():
                if self._failed:
                    done.set_exception(AuditUnavailable(self._failed))
                else:
                    done.set_result(None)


def _last_checkpoint(path: Path) -> int:
    """The greatest seq that a checkpoint in `path` vouches for; 0 when there is none."""
    if not path.exists():
        return 0
    greatest = 0
    for line in audit_file.lines(path):
        try:
            greatest = max(greatest, audit_file.parse(line)["seq"])
        except ValueError:
            continue
    return greatest
