"""One range, cut out of an answer that was fetched whole and searched (RFC 9110 14).

A range that an upstream cuts may begin inside an echo of a secret, where no search finds it. So upstreams are
never asked for one: the response comes whole and is redacted, and the sandbox gets its range of the result.
Several ranges, other units and malformed ones get the whole, as RFC 9110 allows any server to answer.
"""

import re
from dataclasses import dataclass
from datetime import timedelta
from email.utils import parsedate_to_datetime

from coatcheck.decision.message import RequestHead, ResponseHead

_ONE = re.compile(r"bytes=[ \t]*(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))[ \t]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes of a body from `first` to `last`, both included; an empty one ends before it begins."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1


NO_PART = Part(0, -1)
"""Nothing of the body is in the range that was asked for: 416."""


def asked_part(request: RequestHead, response: ResponseHead, length: int) -> Part | None:
    """What of a whole answer of `length` bytes `request` wants; None: all of it."""
    values = request.get_all("range")
    if request.method != "GET" or response.status != 200 or len(values) != 1:
        return None  # for GET alone ranges are defined (RFC 9110 14.2)
    found = _ONE.fullmatch(values[0].strip(" \t"))
    if found is None or not _is_still_that(request, response):
        return None
    if found[3] is not None:
        suffix = min(int(found[3]), length)
        return Part(length - suffix, length - 1) if suffix else NO_PART
    first, last = int(found[1]), int(found[2]) if found[2] else length - 1
    if found[2] and last < first:
        return None  # not a range (RFC 9110 14.1.1)
    return Part(first, min(last, length - 1)) if first < length else NO_PART


def _is_still_that(request: RequestHead, response: ResponseHead) -> bool:
    """If-Range: whether the answer is the version that the client has a part of (RFC 9110 13.1.5).

    A validator that is weak, or that cannot be compared, is no match, and the client gets the whole."""
    conditions = request.get_all("if-range")
    if not conditions:
        return True
    wanted = conditions[0].strip(" \t")
    if len(conditions) > 1:
        return False
    if wanted.startswith('"'):
        return response.get_all("etag") == (wanted,)
    modified, date = response.get("last-modified"), response.get("date")
    if wanted != modified or date is None:
        return False
    try:
        # A file may change twice within a second: its time of change says nothing until that has passed.
        return parsedate_to_datetime(date) - parsedate_to_datetime(modified) >= timedelta(seconds=1)
    except (TypeError, ValueError):
        return False


class Cutting:
    """Passes a body's `part` on, piece by piece."""

    __slots__ = ("_at", "_part")

    def __init__(self, part: Part) -> None:
        self._part = part
        self._at = 0

    @property
    def over(self) -> bool:
        """Whether nothing that may still come is wanted."""
        return self._at > self._part.last

    def cut(self, piece: bytes) -> bytes:
        start, self._at = self._at, self._at + len(piece)
        return piece[max(0, self._part.first - start) : max(0, self._part.last + 1 - start)]
