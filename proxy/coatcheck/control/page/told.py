"""Events as the page shows them: in plain words, cut to a length, and nothing of other tenants.

The words are those of the refusals: whoever reads one in a sandbox and whoever reads the page talk about the
same thing.
"""

import re
import secrets
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

from coatcheck.control.models import SESSION_ID
from coatcheck.decision.denial import EXPLANATIONS
from coatcheck.telemetry.events import (
    Alarm,
    ApprovalEvent,
    DaemonEvent,
    Decision,
    Outcome,
    PolicyEvent,
    Repeated,
    SessionChange,
    SessionEvent,
    ShadowDifference,
)
from coatcheck.telemetry.recent import AlarmGroup, Numbered

_BOOT: Final = secrets.token_bytes(16)
_SESSION: Final = re.compile(SESSION_ID)
_CHANGES: Final = {
    SessionChange.OPENED: "session opened",
    SessionChange.REVOKED: "session revoked",
    SessionChange.LAPSED: "lease was not renewed: session over",
    SessionChange.EXPIRED: "session reached its maximum age",
    SessionChange.ENDED: "session ended",
    SessionChange.HANDLE_REVOKED: "handle revoked",
    SessionChange.CREDENTIAL_REVOKED: "credential taken from the session",
    SessionChange.REBOUND: "sandbox restored or forked: new generation",
}
_OUTCOMES: Final = {
    Outcome.PASS: "allowed, without a credential",
    Outcome.INJECT: "allowed, credential put in",
}

type Shown = dict[str, Any]
type Sees = Callable[[str], bool]
"""Whether the session of this id may be named."""


def shown(numbered: Numbered, sees: Sees) -> Shown:
    """One event for the page's scripts: `kind` is `verdict`, `note` or `shadow`."""
    event = numbered.event
    made: Shown = {"id": _name(numbered.number), "at": event.at}
    match event:
        case Decision():
            return made | {
                "kind": "verdict",
                "outcome": event.outcome.value,
                "words": EXPLANATIONS[event.reason].message if event.reason else _OUTCOMES[event.outcome],
                "reason": event.reason.value if event.reason else "",
                "detail": only_own(event.detail, sees),
                "alarm": event.alarm,
                "session": event.session,
                "tenant": event.tenant,
                "subject": event.subject,
                "rule": event.rule,
                "credentials": list(event.credentials),
                "method": event.method,
                "url": event.destination + event.path,
                "approver": event.approved_by,
                "request": event.request_id,
            }
        case Repeated():
            words = EXPLANATIONS[event.reason].message
            return made | _note(f"{event.count} more times: {words}", event.session, event.tenant, "repeated")
        case Alarm():
            words = EXPLANATIONS[event.reason].message
            detail = only_own(event.detail, sees)
            return made | _note(words, event.session, event.tenant, "alarm", detail)
        case SessionEvent():
            words = f"{_CHANGES.get(event.change, event.change.value)}, by {event.caller}"
            return made | _note(words, event.session, event.tenant, "session", only_own(event.detail, sees))
        case ApprovalEvent():
            by = f", by {event.approver}" if event.approver else ""
            words = f"approval {event.change.value}{by}"
            what = f"{event.method} {event.destination}{event.path}"
            return made | _note(words, event.session, event.tenant, "approval", what)
        case ShadowDifference():
            return made | {
                "kind": "shadow",
                "session": event.session,
                "tenant": event.tenant,
                "policy": event.policy,
                "change": event.change.value,
                "method": event.method,
                "url": event.destination + event.path,
                "active": event.active,
                "candidate": event.candidate,
                "unrecorded": event.unrecorded,
            }
        case PolicyEvent():
            words = f"policy {event.name} {'in force' if event.loaded else 'refused, the old one stays'}"
            return made | _note(words, "", "", "policy", event.detail or event.sha256[:16])
        case DaemonEvent():
            return made | _note(f"daemon: {event.what.replace('_', ' ')}", "", "", "daemon", event.detail)


def _name(number: int) -> str:
    """So that a page that reconnects knows what it has. Not the number: how fast that grows tells one tenant
    how busy the others are."""
    return blake2b(number.to_bytes(8), key=_BOOT, digest_size=9).hexdigest()


def shown_alarm(group: AlarmGroup, sees: Sees) -> Shown:
    explanation = EXPLANATIONS[group.reason]
    return {
        "session": group.session,
        "tenant": group.tenant,
        "reason": group.reason.value,
        "words": explanation.message,
        "credential": group.credential,
        "first": group.first,
        "last": group.last,
        "count": group.count,
        "detail": only_own(group.detail, sees),
        "where": group.where,
    }


def only_own(text: str, sees: Sees) -> str:
    """A stolen handle's record names the session that it was stolen from, which may be another tenant's."""
    return _SESSION.sub(lambda found: found[0] if sees(found[0]) else "another tenant's", text)


def _note(words: str, session: str, tenant: str, topic: str, detail: str = "") -> Shown:
    return {
        "kind": "note",
        "topic": topic,
        "words": words,
        "detail": detail,
        "session": session,
        "tenant": tenant,
    }
