"""Events as the page shows them: in plain words, cut to a length, and nothing of other tenants.

The words are those of the refusals, so that a person at the page and a reader inside a sandbox talk about the
same thing.
"""

import re
import secrets
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from coatcheck.control.models import SESSION_ID
from coatcheck.decision.denial import EXPLANATIONS
from coatcheck.telemetry.event_table import TABLE, Shown
from coatcheck.telemetry.recent import AlarmGroup, Numbered

_BOOT: Final = secrets.token_bytes(16)
_SESSION: Final = re.compile(SESSION_ID)
type Sees = Callable[[str], bool]
"""Whether the session of this id may be named."""


def shown(numbered: Numbered, sees: Sees) -> Shown:
    """One event for the page's scripts, which is one that the table of events has words for."""
    event = numbered.event
    words = TABLE[type(event)].page
    if words is None:
        raise TypeError(f"{type(event).__name__} is no event for the page")
    return {"id": _name(numbered.number), "at": event.at} | words(event, lambda text: only_own(text, sees))


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
