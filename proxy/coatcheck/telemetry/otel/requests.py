"""A request's verdict and its end put together again: one span is made of both."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from coatcheck.telemetry.events import Completion, Decision, Outcome

MOST: Final = 10_000
"""Allowed requests whose end is awaited, about 1 kB each; a plane has fewer places. Past it the oldest are
told as they stand."""


@dataclass(frozen=True, slots=True)
class Request:
    """What became of one request. Without completion and without a refusal: its end is not known (yet)."""

    decision: Decision
    completion: Completion | None = None
    refused: Decision | None = None
    """The refusal that followed an allowed request before its first upstream byte."""


class Requests:
    """Not thread-safe: it belongs to the exporter's thread."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._open: OrderedDict[str, Decision] = OrderedDict()

    def add(self, event: Decision | Completion) -> Request | None:
        """The request that is over by `event`, if one is."""
        before = self._open.pop(event.request_id, None)
        if isinstance(event, Completion):
            # Without a decision: it was refused late and is told already, or its decision found no room.
            return Request(before, event) if before is not None else None
        if event.outcome is Outcome.DENY:
            return Request(event) if before is None else Request(before, refused=event)
        self._open[event.request_id] = event
        if len(self._open) > self._most:
            return Request(self._open.popitem(last=False)[1])
        return None

    def rest(self) -> list[Request]:
        """Those that have not ended, for the exporter's own end."""
        rest = [Request(decision) for decision in self._open.values()]
        self._open.clear()
        return rest
