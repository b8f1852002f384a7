"""The host's time stamp counter, measured."""

from pathlib import Path

import pytest

from coatcheck.launcher.time_stamp_counter import tsc_khz
from coatcheck.sandbox.machine import MachineError


def test_it_is_the_same_each_time() -> None:
    """To 100 ppm on a busy machine: a guest's clock runs by it."""
    first, second = tsc_khz(), tsc_khz()
    assert abs(first - second) < first / 10_000
    assert 500_000 < first < 10_000_000


def test_it_leaves_no_executable_memory_behind() -> None:
    """A page that is writable by nobody and gone afterwards."""
    tsc_khz()
    maps = Path("/proc/self/maps").read_text()
    assert "rdtsc" not in maps


def test_another_kind_of_machine_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an illegal instruction."""
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(MachineError, match="aarch64"):
        tsc_khz()
