"""The last act: what the search found, and what the audit log says."""

import json
from collections import Counter
from collections.abc import Mapping

from coatcheck.telemetry.audit.checkpoint import load_public_key
from coatcheck.telemetry.audit.verify import verify
from demo.microvm import SUBJECT
from demo.report import Report
from demo.stage import Stage
from demo.zero_secrets import Searched

_WIDTHS = (6, 16, 19, 52)
_ATTACKS = Counter(
    host_not_allowed=2, handle_wrong_host=2, handle_stolen=1, handle_revoked=1, authority_mismatch=2
)
"""What the attacks must leave in the audit log, at least; that SNI was wrong is said nowhere else."""


def show_search(
    report: Report, searched: Searched, secrets: Mapping[str, str], handles: Mapping[str, str]
) -> None:
    """Secrets found in the sandbox: none. The handles found there show that the search finds."""
    leaked = [name for name in secrets if searched.hits[name]]
    held = [name for name in handles if searched.hits[name]]
    report.field(
        "searched",
        f"both sandboxes, from the host, while programs ran in them: "
        f"{searched.memory_bytes >> 20} MiB of memory and environment of "
        f"{searched.processes} processes, {searched.files} files, "
        f"{searched.output_bytes >> 10} KiB of output",
    )
    report.field(
        "found",
        f"{len(leaked)} of {len(secrets)} secrets, plain or in Base64: {', '.join(secrets)}",
        "bold",
    )
    report.field("control", f"{len(held)} of {len(handles)} handles, so the search does find what is there")
    report.check(not leaked, f"no secret in the sandbox, but found {', '.join(leaked)}")
    report.check(len(held) == len(handles), "the search finds what is there")
    report.check(not searched.unreadable, f"all could be searched, but {searched.unreadable[:3]}")


async def show_audit(report: Report, stage: Stage) -> None:
    """The chain verified, the lines of the attacks, and no secret in the log."""
    log = stage.state / "audit" / "audit.jsonl"
    key = load_public_key(stage.state / "checkpoint-key.pem.pub")
    verified = verify(log, key, stage.checkpoints)
    text = log.read_text()
    records = [json.loads(line) for line in text.splitlines()]
    decisions = [record for record in records if record["type"] == "decision"]
    refused = [record for record in decisions if record["outcome"] == "deny"]
    # Git asks without a credential first, and sends its own when told to: that is no attack.
    asked = [record for record in refused if record["reason"] == "handle_missing"]
    # The agent program asks its vendor for settings, which no rule allows; it works without.
    curious = [record for record in refused if record["subject"] == SUBJECT]
    report.field(
        "audit",
        f"{verified.records} records, hash chain {'intact' if verified.ok else 'BROKEN'}, "
        f"{sum(d['outcome'] == 'inject' for d in decisions)} injections, {len(refused)} refusals: "
        f"{len(asked)} times git was told to send its credential, {len(curious)} times the agent program "
        "asked for what it need not have, and the attacks:",
    )
    for record in refused:
        if record in asked or record in curious:
            continue
        where = f"{record['method']} {record['destination']}{record['path']}"
        alarm = "alarm" if record["alarm"] else ""
        report.columns(
            _WIDTHS, (f"#{record['seq']}", record["subject"], record["reason"], f"{alarm:<6}{where}")
        )
    report.check(verified.ok, "the audit log's chain holds")
    reasons = Counter(record["reason"] for record in refused)
    report.check(not _ATTACKS - reasons, f"every attack is in the audit log, but it has {dict(reasons)}")
    report.check(
        not any(value in text for value in (*stage.keys.values(), *stage.others.values())),
        "the audit log holds no secret",
    )
