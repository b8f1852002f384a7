"""What I3 says of one case: refused with a reason and nothing left, or broken off on both sides."""

from dataclasses import dataclass

from tests.exhaustive.fail_closed.client import RpcSeen, Seen
from tests.exhaustive.fail_closed.injection import Fault
from tests.exhaustive.fail_closed.world import Moment, Upstream


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case that is over."""

    fault: Fault
    seen: Seen
    upstream: Upstream
    moment: Moment | None
    """None: the place was not passed."""
    left: str
    """What of it never ended."""
    client_ended: bool
    """The client had sent the end of its request."""
    hung: bool = False

    @property
    def kind(self) -> str:
        """In one word, for tables and messages."""
        if self.moment is None:
            return "not reached"
        if self.seen.refusal:
            return f"refused: {self.seen.refusal}"
        if self.seen.asked == "request" and self.seen.status in (101, 200):
            return "complete" if self.seen.whole else "broken off"
        return "silent"


def complaints(outcome: Outcome) -> list[str]:
    """Everything that is wrong with it; `silent` and `complete` are for the caller to excuse by name."""
    moment, seen, upstream = outcome.moment, outcome.seen, outcome.upstream
    if moment is None:
        return []
    found: list[str] = []
    if outcome.hung:
        found.append("the client was left waiting for ever")
    if outcome.left:
        found.append(f"left behind: {outcome.left}")
    if moment.answered:
        return found  # all was said and done before
    if upstream.received and not moment.committed:
        found.append("the upstream was sent a request after the failure")
    if upstream.ended and not outcome.client_ended:
        found.append("the upstream got a clean end that the client had not sent")
    if outcome.kind == "complete":
        found.append("complete: the answer came to its clean end")
    if outcome.kind == "silent" and not (seen.end and _nobody_to_tell(outcome, moment)):
        found.append(
            f"silent: no refusal was told ({seen.asked}, {seen.end or 'open'}, {bytes(seen.data[:60])!r})"
        )
    if outcome.kind == "broken off" and not seen.end:
        found.append("the answer stopped, but the connection stands")
    return found


def _nobody_to_tell(outcome: Outcome, moment: Moment) -> bool:
    """Where an ended connection is all that a client can be told."""
    if moment.committed:
        return True
    if outcome.seen.asked == "tls":
        return True  # it speaks TLS: no byte of HTTP would be read
    if outcome.fault is Fault.CANCELLED:
        return True  # what cancels ends the connection
    if isinstance(outcome.seen, RpcSeen) and not moment.heard:
        return True  # there is no stream to answer on: the connection goes away
    # What never was a request ends as a slow one does, by the sweeper.
    return outcome.fault is Fault.HANGS and not moment.heard
