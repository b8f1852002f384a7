"""Ids for Tab: nothing that is wrong may disturb a line that is being typed."""

import os
from pathlib import Path

import pytest

from coatcheck.cli.known_ids import sandbox_ids, session_ids


@pytest.mark.parametrize(
    "given", [{"COATCHECK_STATE_DIR": ""}, {"COATCHECK_MISSPELT": "1"}, {"COATCHECK_CONTROL_SOCKET": "none"}]
)
def test_without_a_daemon_or_with_wrong_settings_there_are_none(
    given: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no word on the terminal."""
    for name in tuple(os.environ):
        if name.startswith("COATCHECK_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert session_ids("") == sandbox_ids("") == []
