"""The daemon's log file: private, bounded, and read across its rotations."""

import logging
import threading
from pathlib import Path

import pytest

from coatcheck.telemetry import log_file
from coatcheck.telemetry.log_file import LogFile, last_lines


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("t", logging.INFO, "", 0, text, (), None)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(log_file, "MAX_BYTES", 100)
    return tmp_path / "daemon.log"


def test_two_files_of_a_bounded_size(path: Path) -> None:
    """However much is said; each closed to others."""
    handler = LogFile(path)
    for number in range(200):
        handler.emit(record(f"line {number}"))
    handler.close()
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == ["daemon.log", "daemon.log.1"]
    assert all(file.stat().st_size <= 100 and file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert list(last_lines(path, 2)) == ["line 198\n", "line 199\n"]
    assert len(list(last_lines(path, None))) > len(path.read_text().splitlines())


def test_a_follower_goes_on_across_rotations(path: Path) -> None:
    """Nothing is lost between two files, as long as it looks before the second rotation."""
    handler = LogFile(path)
    handler.emit(record("first"))
    lines = last_lines(path, None, follow=True)
    assert next(lines) == "first\n"

    def write() -> None:
        for number in range(5):
            handler.emit(record(f"{number:030}"))

    timer = threading.Timer(log_file.LOOK_SECONDS, write)
    timer.start()
    assert [next(lines).strip() for _ in range(5)] == [f"{number:030}" for number in range(5)]
    timer.join()
    handler.close()


def test_a_place_that_cannot_be_written_costs_lines_and_nothing_else(path: Path) -> None:
    """The same lines are on standard error; a link is not followed."""
    path.symlink_to(path.with_name("elsewhere"))
    LogFile(path).handle(record("lost"))
    assert not path.with_name("elsewhere").exists()
