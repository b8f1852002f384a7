"""Reads an audit log back and says whether it is whole: `coatcheck audit verify`.

Streams: memory does not grow with the log. The chain shows edits, gaps and reordering; signatures show
that the chain is ours; checkpoints kept elsewhere show that the end was cut off or all of it rewritten.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from coatcheck.telemetry.audit import checkpoint
from coatcheck.telemetry.audit import file as audit_file
from coatcheck.telemetry.audit import record as audit_record

FINDINGS = 20
"""Findings that a report keeps: the first one matters, and one break must not fill a screen."""


class Kind(StrEnum):
    """What is wrong."""

    UNREADABLE = "unreadable"
    REWRITTEN = "rewritten"
    GAP = "gap"
    ORDER = "order"
    ANOTHER_LOG = "another_log"
    SIGNATURE = "signature"
    UNSIGNED = "unsigned"
    TRUNCATED = "truncated"
    CHECKPOINTS = "checkpoints"
    TORN = "torn"


_KEEP = "Keep all files as they are and compare them with a backup: the log was changed."

NEXT: dict[Kind, str] = {
    Kind.UNREADABLE: _KEEP,
    Kind.REWRITTEN: _KEEP,
    Kind.GAP: "Give every file of the log; if none is missing, records were removed: look for a backup.",
    Kind.ORDER: "Give each file once; if you did, records were copied or moved: look for a backup.",
    Kind.ANOTHER_LOG: "If the old log was not moved away on purpose, it was replaced: look for a backup.",
    Kind.SIGNATURE: "Check that the public key is this log's; if it is, this was written without the key.",
    Kind.UNSIGNED: "Give the log that a signer was configured for; if this is the log, it was rewritten.",
    Kind.TRUNCATED: "Give every file of the log; if you did, its end was cut off or an old copy put back.",
    Kind.CHECKPOINTS: "Read the checkpoints around this one; the log was rolled back, or they were changed.",
    Kind.TORN: "Nothing is lost that was acknowledged to the disk; the daemon mends this at its next start.",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and where."""

    kind: Kind
    file: Path
    line: int
    """1 is the first; 0 when it is about the whole file."""
    seq: int
    what: str

    @property
    def next(self) -> str:
        """What to do about it."""
        return NEXT[self.kind]


@dataclass(slots=True)
class Report:
    """What a verification found. `ok` means: nothing but, perhaps, a torn last line."""

    files: int = 0
    records: int = 0
    first_seq: int = 0
    """Above 1: earlier files were not given, and are vouched for only by the first record's `prev`."""
    last_seq: int = 0
    signed_through: int = 0
    """The last record that a verified signature covers; 0 without a public key."""
    checkpoints: int = 0
    """Checkpoints from elsewhere that the log was found to contain."""
    types: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    problems: int = 0
    """All findings but TORN, those that `findings` has no room for included."""

    @property
    def ok(self) -> bool:
        return self.problems == 0

    @property
    def broken(self) -> Finding | None:
        """The first broken record."""
        return next((f for f in self.findings if f.kind is not Kind.TORN), None)

    def found(self, kind: Kind, file: Path, line: int, seq: int, what: str) -> None:
        self.problems += kind is not Kind.TORN
        if len(self.findings) < FINDINGS:
            self.findings.append(Finding(kind, file, line, seq, what))


def verify(
    paths: Path | Sequence[Path],
    public_key: Ed25519PublicKey | Sequence[Ed25519PublicKey] | None = None,
    checkpoints: Path | None = None,
) -> Report:
    """Verify the log in `paths`, oldest file first; one path stands for itself and its rotated files.

    `public_key`: signatures are checked (several keys: after a change of key). `checkpoints`: the second
    sink's file. OSError when a file cannot be read.
    """
    files = audit_file.log_files(paths) if isinstance(paths, Path) else list(paths)
    if not files:
        raise FileNotFoundError(f"no audit log at {paths}")
    given = [public_key] if isinstance(public_key, Ed25519PublicKey) else public_key or []
    # Opened before the log is read: a live daemon writes the log first, so these are never ahead of it.
    elsewhere = _Elsewhere(checkpoints) if checkpoints else None
    walk = _Walk(Report(files=len(files)), {checkpoint.key_id(key): key for key in given}, elsewhere)
    for file in files:
        walk.file(file, last=file == files[-1])
    walk.finish()
    return walk.report


class _Walk:
    """The state of one verification: what the next record must say."""

    def __init__(
        self, report: Report, keys: dict[str, Ed25519PublicKey], elsewhere: "_Elsewhere | None"
    ) -> None:
        self.report = report
        self._keys = keys
        self._elsewhere = elsewhere
        self._seq = 0
        self._hash = ""
        self._log = ""
        self._first = 0
        self._at: tuple[Path, int] = (Path(), 0)

    def file(self, path: Path, *, last: bool) -> None:
        number = 0
        for number, line in enumerate(audit_file.lines(path), 1):
            if not line.endswith(b"\n"):
                torn = last and len(line) <= audit_record.LINE_BYTES
                what = f"the last line is cut short ({len(line)} bytes)" if torn else "a line has no end"
                self.report.found(Kind.TORN if torn else Kind.UNREADABLE, path, number, self._seq + 1, what)
                if not torn:
                    return
                continue
            try:
                record = audit_file.parse(line)
            except ValueError:
                self.report.found(
                    Kind.UNREADABLE, path, number, self._seq + 1, "the line is not an audit record"
                )
                continue
            self._record(path, number, line, record)

    def _record(self, path: Path, number: int, line: bytes, record: dict[str, Any]) -> None:
        report, seq, prev = self.report, record["seq"], record["prev"]
        if not report.records:
            report.first_seq = seq
            if seq == 1 and prev != audit_record.GENESIS:
                report.found(Kind.REWRITTEN, path, number, seq, "the first record continues something")
        elif seq <= self._seq:
            what = f"record {seq} follows record {self._seq}: copied or moved"
            if seq == 1:
                what = "a new log begins here, and nothing links it to the one before"
            report.found(Kind.ANOTHER_LOG if seq == 1 else Kind.ORDER, path, number, seq, what)
        elif seq > self._seq + 1:
            what = f"records {self._seq + 1} to {seq - 1} are missing"
            report.found(Kind.GAP, path, number, seq, what)
        elif prev != self._hash:
            # The hash that this record holds was of another line: the one before is not what it was.
            file, line_number = self._at
            what = (
                f"record {self._seq} is not the one that record {seq} was chained to: one of them was changed"
            )
            report.found(Kind.REWRITTEN, file, line_number, self._seq, what)
        self._seq, self._hash, self._at = seq, hashlib.sha256(line).hexdigest(), (path, number)
        kind = record["type"]
        if kind in audit_record.KINDS:
            report.types[kind] = report.types.get(kind, 0) + 1
        else:
            report.found(Kind.UNREADABLE, path, number, seq, "no record has this type")
        report.records += 1
        report.last_seq = max(report.last_seq, seq)
        if number == 1:
            self._first = seq
            if kind != audit_record.LOG:
                report.found(Kind.GAP, path, number, seq, "the file's first lines are missing")
        if kind == audit_record.LOG:
            self._own(path, number, record)
        elif kind == audit_record.CHECKPOINT:
            self._signed(path, number, record)
        if self._elsewhere:
            self._elsewhere.compare(self.report, path, number, seq, line)

    def _own(self, path: Path, number: int, record: dict[str, Any]) -> None:
        if record.get("first") != self._first:
            what = "the file's first lines are missing"
            self.report.found(Kind.GAP, path, number, record["seq"], what)
        log = str(record.get("log"))
        if self._log and log != self._log and record["seq"] != 1:
            self.report.found(Kind.ANOTHER_LOG, path, number, record["seq"], "the record is of another log")
        self._log = log

    def _signed(self, path: Path, number: int, record: dict[str, Any]) -> None:
        if not self._keys:
            return
        why = self._refused(record)
        if why:
            self.report.found(Kind.SIGNATURE, path, number, record["seq"], why)
        else:
            self.report.signed_through = record["seq"]

    def _refused(self, record: dict[str, Any]) -> str:
        key = self._keys.get(str(record.get("key")))
        if key is None:
            return "the checkpoint was signed with a key that was not given"
        log, at = str(record.get("log")), record.get("at")
        if self._log and log != self._log:
            return "the checkpoint is of another log"
        if not isinstance(at, float):
            return "the checkpoint has no time"
        signed = checkpoint.statement(log, record["seq"], record["prev"], at)
        if not checkpoint.signature_holds(key, str(record.get("signature")), signed):
            return "the checkpoint's signature does not hold"
        return ""

    def finish(self) -> None:
        file, number = self._at
        if self._keys and not self.report.signed_through:
            what = "no checkpoint is signed with the key that was given"
            self.report.found(Kind.UNSIGNED, file, number, self._seq, what)
        if self._elsewhere:
            self._elsewhere.finish(self.report, file, number)


class _Elsewhere:
    """The second sink's checkpoints, read beside the log: both are in the order of seq."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._line = 0
        self._seq = 0
        self._lines = self._read(path.stat().st_size)
        self._next = next(self._lines, None)

    def _read(self, size: int) -> Iterator[tuple[int, bytes]]:
        for line in audit_file.lines(self._path):
            size -= len(line)
            if size < 0:
                return
            self._line += 1
            try:
                yield audit_file.parse(line)["seq"], line
            except ValueError:
                # A checkpoint that a crash cut short proves nothing and hides nothing: later ones follow.
                continue

    def compare(self, report: Report, path: Path, number: int, seq: int, line: bytes) -> None:
        """Look whether the checkpoint for `seq`, if there is one, is the log's own line."""
        while self._next and self._next[0] <= seq:
            theirs, text = self._next
            self._advance(report, theirs)
            if theirs < seq:
                if theirs >= report.first_seq:
                    what = f"checkpoint {theirs} is not in the log"
                    report.found(Kind.CHECKPOINTS, path, number, seq, what)
            elif text != line:
                what = f"record {seq} differs from the checkpoint kept elsewhere"
                report.found(Kind.REWRITTEN, path, number, seq, what)
            else:
                report.checkpoints += 1

    def finish(self, report: Report, path: Path, number: int) -> None:
        """What is left vouches for records that the log does not have."""
        last = 0
        while self._next:
            theirs = self._next[0]
            last = max(last, theirs)
            self._advance(report, theirs)
        if last > report.last_seq:
            what = f"the log ends at record {report.last_seq}, a checkpoint vouches for {last}"
            report.found(Kind.TRUNCATED, path, number, report.last_seq, what)
        elif not report.checkpoints and report.ok:
            what = f"{self._path} holds no checkpoint of this log"
            report.found(Kind.CHECKPOINTS, path, number, report.last_seq, what)

    def _advance(self, report: Report, before: int) -> None:
        self._next = next(self._lines, None)
        if self._next and self._next[0] <= before:
            what = f"checkpoint {self._next[0]} was made after checkpoint {before}: the log was rolled back"
            report.found(Kind.CHECKPOINTS, self._path, self._line, self._next[0], what)
