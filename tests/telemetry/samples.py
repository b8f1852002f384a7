"""Events that the telemetry tests write, and logs made of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coatcheck.decision.comparison import Comparison
from coatcheck.decision.denial import Reason
from coatcheck.telemetry.audit.checkpoint import CheckpointSigner
from coatcheck.telemetry.audit.log import AuditLog
from coatcheck.telemetry.events import (
    Alarm,
    ApprovalChange,
    ApprovalEvent,
    Completion,
    DaemonEvent,
    Decision,
    Event,
    Inspected,
    Outcome,
    PolicyEvent,
    Repeated,
    SessionChange,
    SessionEvent,
    ShadowDifference,
    SlowDecision,
    Usage,
)

DECISION = Decision(
    at=1_760_000_000.25,
    request_id="01JB2W4Q9D",
    session="s-1",
    tenant="acme",
    subject="agent-7",
    policy="platform",
    policy_hash="ab" * 32,
    outcome=Outcome.INJECT,
    reason=None,
    detail="",
    rule="model calls",
    credentials=("openai",),
    method="POST",
    destination="https://api.example.com",
    path="/v1/chat/completions",
    origin="socket",
    alarm=False,
    added_seconds=0.0004,
)
DENIED = replace(DECISION, outcome=Outcome.DENY, reason=Reason.HOST_NOT_ALLOWED, rule="", credentials=())
COMPLETION = Completion(DECISION.at + 1, "01JB2W4Q9D", "s-1", 200, 10, 2000, 0.5, 1, None)
OPENED = SessionEvent(DECISION.at - 5, SessionChange.OPENED, "s-1", "acme", "agent-7", "platform", "uid 0")
ENDED = replace(OPENED, at=DECISION.at + 10, change=SessionChange.ENDED)
ALARM = Alarm(DECISION.at, Reason.HANDLE_STOLEN, "s-2", "acme", "openai", "shown by s-1's sandbox")
POLICY = PolicyEvent(DECISION.at, "platform", "cd" * 32, loaded=True, detail="")
SHADOW = ShadowDifference(
    DECISION.at, "s-1", "acme", "platform", "ef" * 32, Comparison.REFUSES, "GET", "https://api.example.com",
    "/v1", "allowed, rule model calls", "refused, path_not_allowed", 3,
)  # fmt: skip
APPROVAL = ApprovalEvent(
    DECISION.at, ApprovalChange.APPROVED, "apr_1", "01JB2W4Q9D", "s-1", "acme", "agent-7", "platform",
    "merge", ("github",), "PUT", "https://api.example.com", "/merge?sha=…", "alice", 900.0,
)  # fmt: skip
ALL_EVENTS: tuple[Event, ...] = (
    DECISION,
    DENIED,
    COMPLETION,
    OPENED,
    ENDED,
    ALARM,
    APPROVAL,
    POLICY,
    SHADOW,
    DaemonEvent(DECISION.at, "ready", "after 0.2 s"),
    SlowDecision(DECISION.at, "req-1", "s-1", "acme", 0.0123, 7),
    Usage(DECISION.at, "s-1", "acme", "agent-7", 15.0, 2, 10, 2000),
    Inspected(
        DECISION.at,
        "sbx-1",
        ("s-1",),
        "acme",
        "uid 0",
        "nothing_found",
        0,
        1 << 30,
        ("openai",),
        (),
        2.0,
        1.5,
        "ef" * 32,
    ),
    Repeated(DECISION.at, "decision", "s-1", "acme", Reason.HOST_NOT_ALLOWED, 70, DECISION.at - 10),
)


def numbered(number: int) -> Decision:
    """A decision that can be told from all others by its request id."""
    return replace(DECISION, request_id=f"r{number}")


class Written:
    """A signed log of `records` decisions in `root/audit`, closed, with its checkpoints beside it."""

    def __init__(self, root: Path, records: int = 40, **settings: Any) -> None:
        self.path = root / "audit" / "audit.jsonl"
        self.checkpoints = root / "checkpoints.jsonl"
        self.signer = CheckpointSigner(Ed25519PrivateKey.generate())
        self.key = self.signer.public_key
        self._settings = {"checkpoint_records": 10, "flush_seconds": 0.01} | settings
        self.append(records)

    def open(self) -> AuditLog:
        return AuditLog(self.path, signer=self.signer, second_sink=self.checkpoints, **self._settings)

    def append(self, records: int) -> None:
        log = self.open()
        for number in range(records):
            log.write(numbered(number))
        log.close()

    def lines(self) -> list[bytes]:
        return self.path.read_bytes().splitlines(keepends=True)

    def put(self, lines: list[bytes]) -> None:
        self.path.write_bytes(b"".join(lines))
