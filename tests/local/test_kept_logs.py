"""The log of a daemon that lived for one command: moved whole, private, and not for ever."""

import os
import stat
from pathlib import Path

import pytest

from coatcheck.local import kept_logs
from coatcheck.local.kept_logs import keep_log


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    return tmp_path / "home/coatcheck-runs"


def state(directory: Path) -> Path:
    (directory / "audit").mkdir(mode=0o700, parents=True)
    (directory / "audit/audit.jsonl").write_text("{}\n")
    (directory / "checkpoint-key.pem.pub").write_text("public\n")
    (directory / "checkpoint-key.pem").write_text("private\n")
    return directory


def test_the_log_and_the_public_key_are_kept_and_nothing_else(tmp_path: Path, home: Path) -> None:
    """Keys of the daemon go with it."""
    kept = keep_log(state(tmp_path / "state"))
    assert kept is not None and kept.read_text() == "{}\n"
    assert sorted(path.name for path in kept.parents[1].iterdir()) == ["audit", "checkpoint-key.pem.pub"]
    assert stat.S_IMODE(home.stat().st_mode) == stat.S_IMODE(kept.parents[1].stat().st_mode) == 0o700


def test_the_oldest_logs_give_way(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is run all day fills no disk."""
    monkeypatch.setattr(kept_logs, "KEPT", 3)
    home.mkdir(parents=True, mode=0o700)
    for number in range(5):
        (home / f"2000010{number}T000000Z-1").mkdir()
    keep_log(state(tmp_path / "state"))
    assert len(list(home.iterdir())) == 3 and not (home / "20000102T000000Z-1").exists()


def test_where_it_cannot_be_kept_the_command_goes_on(tmp_path: Path, home: Path) -> None:
    """A home that cannot be written, or a daemon that did not come to a log."""
    assert keep_log(tmp_path / "nothing") is None
    home.parent.mkdir()
    home.write_text("in the way")
    assert keep_log(state(tmp_path / "state")) is None
    assert os.path.exists(tmp_path / "state/audit/audit.jsonl")
