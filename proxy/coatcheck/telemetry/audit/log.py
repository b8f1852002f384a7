"""The audit log: hash-chained JSON lines, written before the first upstream byte (I8).

`write` hands the record to the kernel before it returns, so it survives `kill -9` of the daemon. A
thread flushes to disk in groups, signs checkpoints and rotates. What cannot be written is refused:
AuditUnavailable, and the caller lets nothing leave.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coatcheck.platform.outage import Outage
from coatcheck.telemetry.audit import file as audit_file
from coatcheck.telemetry.audit import record as audit_record
from coatcheck.telemetry.audit.chain import Chain
from coatcheck.telemetry.audit.checkpoint import CheckpointSigner, CheckpointSink
from coatcheck.telemetry.audit.file import AuditUnavailable
from coatcheck.telemetry.events import Event, SessionEvent

__all__ = ["AuditLog", "AuditUnavailable", "Recovery"]

_log = logging.getLogger(__name__)

CHECKPOINT_RECORDS = 1000
"""A checkpoint at least every so many records: signing costs ~50 µs, so ~0.05 µs a record."""

CHECKPOINT_SECONDS = 5.0
"""… and at the latest so long after a record: what can be cut off unseen is at most this much."""

RETRY_SECONDS = 1.0
"""Between two attempts to write while nothing can be written."""

MAX_BYTES = 256 * 1024 * 1024
"""A file is rotated at about this size: some 400,000 requests, which a reader still opens."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was found at the start: the daemon tells of it, a security team wants to know."""

    continued: bool
    """False: a new log was begun."""
    torn_bytes: int
    """Bytes of a record that a crash cut short; kept in the first new record."""
    missing: int
    """Records that the second sink's checkpoints vouch for and the log does not have: it was truncated
    or rolled back."""


class AuditLog:
    """An append-only, hash-chained log in `path`, which must be in a directory of its own (0700).

    `signer` None: no checkpoints. `second_sink`: a file elsewhere, or a callable that takes each
    checkpoint's line (bytes, newline included) and may block its own thread. `flush_seconds`: the
    longest a record waits for the disk. `max_bytes`: about where a file is rotated; nothing is ever
    deleted. Thread-safe. Raises AuditUnavailable when it cannot begin.
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
        self._lock = threading.Lock()
        self._lost = 0
        self._tried_at = 0.0
        self._full = Outage()
        try:
            audit_file.open_directory(path.parent)
            self._guard = audit_file.lock(path)
            try:
                self._begin(second_sink if isinstance(second_sink, Path) else None, clock)
            except BaseException:
                os.close(self._guard)
                raise
        except OSError as error:
            raise AuditUnavailable(f"cannot open the audit log {path}: {error.strerror}") from error
        self._sink = CheckpointSink(second_sink) if signer and second_sink else None
        if self._sink:
            self._sink.offer(self._first_checkpoint)
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._keep_flushing, name="audit-flush", daemon=True)
        self._thread.start()

    def _begin(self, checkpoints: Path | None, clock: Callable[[], float]) -> None:
        end = audit_file.read_end(self._path)
        known = audit_file.last_seq(checkpoints) if checkpoints else 0
        self.recovery = Recovery(bool(end.seq), len(end.torn), max(0, known - end.seq))
        details: dict[str, str | float] = {}
        if end.torn:
            torn = end.torn[: audit_record.FIELD_BYTES].decode("latin-1")
            details |= {"torn_bytes": len(end.torn), "torn": torn}
        if self.recovery.missing:
            details["missing"] = self.recovery.missing
            _log.critical(
                "the audit log %s was truncated or rolled back: it ends at record %d, its checkpoints at %d",
                self._path, end.seq, known,
            )  # fmt: skip
        self._chain = Chain(self._path, end, clock)
        try:
            what = "recovered" if details else "continued" if end.seq else "opened"
            self._chain.append_own(what, **details)
            self._first_checkpoint = self._chain.append_checkpoint(self._signer) if self._signer else b""
            os.fsync(self._chain.fd)
            audit_file.sync_directory(self._path.parent)
        except BaseException:
            os.close(self._chain.fd)
            raise
        self._durable = self._chain.seq

    # --- what the rest of the daemon calls ---------------------------------------------------------

    def write(self, event: Event) -> None:
        """Append `event`; when this returns, the kernel has it. AuditUnavailable when it does not."""
        try:
            kind, fields = audit_record.body(event)
        except Exception as error:
            raise AuditUnavailable(f"a {type(event).__name__} cannot be written as a record") from error
        chain = self._chain
        with self._lock:
            try:
                chain.append(kind, fields)
            except AuditUnavailable:
                self._lost += 1
                raise
            if self._lost:
                self._tell_of_the_gap()
            if type(event) is SessionEvent and event.state_version > chain.state_version:
                chain.state_version = event.state_version

    def _tell_of_the_gap(self) -> None:
        """How many records were refused before. Written after one that was not, or once a second: on a disk
        with room for this small record and for no other, each refused attempt would leave one."""
        try:
            self._chain.append_own("resumed", lost=self._lost)
        except AuditUnavailable:
            return
        self._lost = 0

    def last_state_version(self) -> int:
        """The greatest state version that the log tells of. A state directory behind it was rolled back."""
        return self._chain.state_version

    @property
    def counts(self) -> Mapping[str, int]:
        """Records written by this process, by type."""
        return dict(self._chain.counts)

    @property
    def second_sink_failures(self) -> int:
        """Checkpoints that did not reach the second sink."""
        return self._sink.failures if self._sink else 0

    @property
    def signer(self) -> CheckpointSigner:
        """The key that signs checkpoints. RuntimeError in a log without one."""
        if self._signer is None:
            raise RuntimeError("this audit log has no signer")
        return self._signer

    @property
    def broken(self) -> str:
        """Why nothing can be written until a restart; empty while it can."""
        return self._chain.broken

    @property
    def failing(self) -> str:
        """Why the last record could not be written, for now or until a restart; empty when it could."""
        return self.broken or (f"{self._lost} records could not be written" if self._lost else "")

    def close(self) -> None:
        """Sign, flush and close. Nothing can be written afterwards."""
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        self._thread.join()
        with self._lock:
            self._chain.broken = self._chain.broken or "the audit log is closed"
            os.close(self._chain.fd)
            os.close(self._guard)
        if self._sink:
            self._sink.close()

    # --- the thread ---------------------------------------------------------------------------------

    def _keep_flushing(self) -> None:
        while True:
            self._wake.wait(self._flush_seconds)
            self._wake.clear()
            closing = self._closing
            try:
                self._flush(closing)
            except Exception as error:  # noqa: BLE001 - whatever broke, requests must be refused from here on
                # Never retried: after a failed fsync the kernel calls lost pages clean (fsyncgate, 2018).
                self._break(f"flushing {self._path} failed ({error}); mend the disk, then restart")
            if closing:
                return

    def _flush(self, closing: bool) -> None:
        checkpoint = b""
        with self._lock:
            if self._chain.broken:
                return
            self._try_again()
            if changed := self._chain.changed_beneath():
                full = False
            else:
                checkpoint = self._checkpoint(closing)
                full = self._chain.size >= self._max_bytes
            seq, fd = self._chain.seq, self._chain.fd
        if changed:
            self._break(
                f"{self._path} was changed or removed while the daemon was running;"
                " keep what is left, then restart"
            )
            return
        if seq > self._durable:
            os.fdatasync(fd)
            self._durable = seq
        # Only now: a checkpoint elsewhere must never be ahead of what a power cut leaves here.
        if checkpoint and self._sink:
            self._sink.offer(checkpoint)
        if full and not closing:
            self._rotate()

    def _try_again(self) -> None:
        """A client that waits until we are ready again sends no request, and without one no record is
        tried."""
        if self._lost and time.monotonic() - self._tried_at >= RETRY_SECONDS:
            self._tried_at = time.monotonic()
            self._tell_of_the_gap()

    def _checkpoint(self, closing: bool) -> bytes:
        chain = self._chain
        due = (
            closing
            or chain.unsigned >= self._checkpoint_records
            or time.monotonic() - chain.signed_at >= self._checkpoint_seconds
        )
        if not self._signer or not chain.unsigned or not due:
            return b""
        try:
            return chain.append_checkpoint(self._signer)
        except AuditUnavailable:
            return b""  # a full disk: requests are refused and reported; the next round tries again

    def _rotate(self) -> None:
        with self._lock:
            try:
                full = self._chain.rotate()
            except AuditUnavailable as error:
                if self._full.noticed():
                    _log.error("%s; going on in the full file", error)
                return
        self._full.over()
        try:
            os.fsync(full)
        finally:
            os.close(full)
        audit_file.sync_directory(self._path.parent)

    def _break(self, why: str) -> None:
        with self._lock:
            self._chain.broken = self._chain.broken or why
        _log.critical("audit log out of use, every request is refused: %s", why)
