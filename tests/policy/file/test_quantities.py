"""Sizes and rates have units, and nothing is guessed."""

import pytest

from coatcheck.injectors.spelling import Wrong, size
from coatcheck.policy.file.quantities import Rate, byte_rate, request_rate


def test_sizes_and_rates_are_read() -> None:
    """Bytes and seconds."""
    assert size("10MiB") == 10 * 1024 * 1024
    assert size("1B") == 1
    assert request_rate("60/minute") == Rate(60, 60.0)
    assert request_rate("1/day") == Rate(1, 86400.0)
    assert byte_rate("1GiB/hour") == Rate(1 << 30, 3600.0)


@pytest.mark.parametrize(
    "text", ["10", "10MB", "10 MiB", "0MiB", "-1MiB", "1.5GiB", "١MiB", "99999999TiB", "", "MiB"]
)
def test_an_odd_size_is_refused(text: str) -> None:
    """No unit, an ambiguous one, or no positive whole number that arithmetic can hold."""
    with pytest.raises(Wrong):
        size(text)


@pytest.mark.parametrize(
    "text",
    ["60", "60/min", "60 / minute", "0/minute", "1.5/second", "/minute", "60/", "1e3/day", "9999999999/day"],
)
def test_an_odd_rate_is_refused(text: str) -> None:
    """No period, an unknown one, or no positive whole number."""
    with pytest.raises(Wrong):
        request_rate(text)
    with pytest.raises(Wrong):
        byte_rate(text)
