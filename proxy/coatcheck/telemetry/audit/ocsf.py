"""Audit records as events of the Open Cybersecurity Schema Framework 1.4, for SIEMs that know it."""

from coatcheck.telemetry.audit.ocsf_classes import Event, Record, base
from coatcheck.telemetry.audit.record import CHECKPOINT
from coatcheck.telemetry.event_table import TABLE


def event(record: Record) -> Event | None:
    """The OCSF event of an audit record; None for checkpoints, which say something about the log alone.

    A type that is not known here becomes a base event with everything in `unmapped`.
    """
    kind = record["type"]
    if kind == CHECKPOINT:
        return None
    write = next((row.ocsf for row in TABLE.values() if row.kind == kind), base)
    return write(record)
