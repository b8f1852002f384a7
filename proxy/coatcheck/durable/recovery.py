"""In the daemon: decides whether a sandbox that died is restored automatically: a few times, then no more."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from coatcheck.durable.sandbox import Sandbox
from coatcheck.sandbox.sandbox import Ending, SandboxState

ATTEMPTS: Final = 3
WITHIN_SECONDS: Final = 600.0
"""So many in so long, then no more: what dies of what it does would die of it for ever."""
PAUSES: Final = (0.0, 5.0, 30.0)
"""Before each: a host that has no memory or no disk may have some by then."""

DIED: Final = frozenset(
    {
        Ending.MACHINE_ENDED,
        Ending.SUPERVISOR_GONE,
        Ending.DAEMON_GONE,
        Ending.START_FAILED,
        Ending.REBIND_FAILED,
    }
)
"""Ends that nobody wanted. A caller's word, a limit, a revocation or a guest that broke the protocol is one
that somebody decided: nothing undoes it automatically."""


class Step(StrEnum):
    """What is to be done now."""

    NOTHING = "nothing"
    TRY = "try"
    GIVE_UP = "give_up"


def next_step(sandbox: Sandbox, attempts: Sequence[float], now: float) -> Step:
    """`attempts`: when it was restored automatically, in order. Times are Unix seconds."""
    ended = sandbox.state is SandboxState.ENDED and sandbox.recoverable and sandbox.ending in DIED
    if not sandbox.keeping.recovers or not ended or now >= sandbox.expires_at:
        return Step.NOTHING  # its time limit is not begun anew by dying: a guest can die when it likes
    recent = [each for each in attempts if now - each < WITHIN_SECONDS]
    if len(recent) >= ATTEMPTS:
        return Step.GIVE_UP
    if recent and now - recent[-1] < PAUSES[len(recent)]:
        return Step.NOTHING
    return Step.TRY
