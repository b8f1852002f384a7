from pathlib import Path

import pytest

from tests.long_files import FIRST

ROOT = Path(__file__).parent.parent


def test_each_is_there_and_listed_once() -> None:
    """A file that was renamed would come last again."""
    assert [name for name in FIRST if not (ROOT / name).is_file()] == []
    assert len(set(FIRST)) == len(FIRST)


def test_they_come_first_and_stay_whole(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the list; the others behind them, in their own."""
    monkeypatch.setattr("tests.long_files._PLACE", {"test_z.py": 0, "test_m.py": 1})
    for name in "amz":
        pytester.makepyfile(**{f"test_{name}": "def test_2(): pass\ndef test_1(): pass"})
    ran = pytester.inline_run("-p", "tests.long_files", "-p", "no:randomly", "-p", "no:cacheprovider")
    assert [
        call.report.nodeid for call in ran.getcalls("pytest_runtest_logreport") if call.report.when == "call"
    ] == [f"test_{name}.py::test_{number}" for name in "zma" for number in (2, 1)]
