"""Sizes, rates and times: `10MiB`, `60/minute`, `1GiB/hour`, `15m`."""

import re
from dataclasses import dataclass

from coatcheck.injectors.spelling import SIZE, Wrong, size

PERIODS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}

_TIMES = {"s": 1.0, "m": 60.0, "h": 3600.0}
_TIME = re.compile(r"([1-9][0-9]{0,5})([smh])")
_COUNT = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class Rate:
    """`count` units in `period` seconds."""

    count: int
    period: float


def duration(text: str) -> float:
    """Seconds."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise Wrong(f'"{text}" is not a time', "write a whole number and s, m or h, such as 15m")
    return int(found[1]) * _TIMES[found[2]]


def request_rate(text: str) -> Rate:
    """Requests in a time."""
    count, _, period = text.partition("/")
    if not _COUNT.fullmatch(count) or period not in PERIODS:
        raise Wrong(
            f'"{text}" is not a rate', "write a number and /second, /minute, /hour or /day, such as 60/minute"
        )
    return Rate(int(count), PERIODS[period])


def byte_rate(text: str) -> Rate:
    """Bytes in a time."""
    amount, _, period = text.partition("/")
    if period not in PERIODS or not SIZE.fullmatch(amount):
        raise Wrong(
            f'"{text}" is not a rate of bytes',
            "write a size and /second, /minute, /hour or /day, such as 10MiB/hour",
        )
    return Rate(size(amount), PERIODS[period])
