"""The chain's growing end: one file descriptor, the last record's number and hash. Not thread-safe.

The caller that appends holds `AuditLog`'s lock; nothing here waits for the disk but a rotation's rename.
"""

import hashlib
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from coatcheck.telemetry.audit import file as audit_file
from coatcheck.telemetry.audit import record as audit_record
from coatcheck.telemetry.audit.checkpoint import CheckpointSigner
from coatcheck.telemetry.audit.file import AuditUnavailable


class Chain:
    """Appends records to the log at `path`, from where it ended; AuditUnavailable when it cannot open it."""

    def __init__(self, path: Path, end: audit_file.End, clock: Callable[[], float]) -> None:
        self.path = path
        self.fd = audit_file.open_current(path)
        if end.torn:
            os.ftruncate(self.fd, end.size)
        self.log = end.log or secrets.token_hex(8)
        """The log's id: another log, signed with the same key, cannot stand in for this one."""
        self.seq, self.size = end.seq, end.size
        self.state_version = end.state_version
        self.counts: Counter[str] = Counter()
        """Records by type, of this process."""
        self.broken = ""
        """Why nothing can be appended until a restart; empty while it can."""
        self.unsigned = 0
        """Records since the last checkpoint."""
        self.signed_at = time.monotonic()
        self._prev, self._first_seq = end.prev, end.first_seq
        self._clock = clock

    def append(self, kind: str, fields: str) -> bytes:
        """Write one record; the kernel has it when this returns. AuditUnavailable when it has not."""
        if self.broken:
            raise AuditUnavailable(self.broken)
        line = audit_record.line(self.seq + 1, self._prev, kind, fields)
        try:
            written = os.write(self.fd, line)
        except OSError as error:
            raise AuditUnavailable(f"cannot write the audit log {self.path}: {error.strerror}") from error
        if written != len(line):
            self._take_back()
            raise AuditUnavailable(f"cannot write the audit log {self.path}: no space left; make room")
        self._prev = hashlib.sha256(line).hexdigest()
        self.seq += 1
        self.size += written
        self.unsigned += 1
        self.counts[kind] += 1
        return line

    def _take_back(self) -> None:
        """Remove the half record that a full disk left: the next one must not be glued to it."""
        try:
            os.ftruncate(self.fd, self.size)
        except OSError as error:
            self.broken = f"there is half a record in {self.path} ({error.strerror}); make room, then restart"

    def append_own(self, what: str, **fields: str | float) -> None:
        """Write a record about the log itself."""
        own = audit_record.own_body(
            at=float(self._clock()),
            what=what,
            log=self.log,
            first=self._first_seq,
            state_version=self.state_version,
            **fields,
        )
        self.append(audit_record.LOG, own)

    def append_checkpoint(self, signer: CheckpointSigner) -> bytes:
        """Write a signed checkpoint; its line, for the second sink."""
        at = float(self._clock())
        signature = signer.sign(self.log, self.seq + 1, self._prev, at)
        fields = audit_record.own_body(at=at, log=self.log, key=signer.key_id, signature=signature)
        line = self.append(audit_record.CHECKPOINT, fields)
        self.unsigned, self.signed_at = 0, time.monotonic()
        return line

    def changed_beneath(self) -> bool:
        """Whether the file is not as we left it. Shorter: truncated, or logrotate's copytruncate. Longer:
        somebody else writes. No name, or two: removed, or linked to elsewhere."""
        found = os.fstat(self.fd)
        return found.st_size != self.size or found.st_nlink != 1

    def rotate(self) -> int:
        """Begin a new file; the full one's descriptor, for the caller to flush and close.

        When that fails the full file goes on growing, and AuditUnavailable says why.
        """
        full = audit_file.rotated_name(self.path, self._first_seq)
        if full.exists():
            raise AuditUnavailable(f"cannot rotate the audit log: {full} exists already; move it away")
        before = (self.fd, self.size, self._first_seq)
        try:
            os.rename(self.path, full)
            self.fd = audit_file.open_current(self.path, new=True)
            self.size, self._first_seq = 0, self.seq + 1
            self.append_own("rotated", previous=full.name)
        except (OSError, AuditUnavailable) as error:
            self._rotate_back(full, *before)
            raise AuditUnavailable(f"cannot rotate the audit log: {error}") from error
        return before[0]

    def _rotate_back(self, full: Path, fd: int, size: int, first_seq: int) -> None:
        if self.fd != fd:
            os.close(self.fd)
        self.fd, self.size, self._first_seq = fd, size, first_seq
        try:
            if full.exists():
                os.replace(full, self.path)  # over the new file, which holds no whole record
        except OSError as error:
            self.broken = f"a rotation of {self.path} failed half-way ({error.strerror}); restart"
