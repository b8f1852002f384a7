"""The state directory is ours alone, or the daemon does not start."""

import os
import stat
from pathlib import Path

import pytest

from coatcheck.certificates.authority import Authority
from coatcheck.platform.state_directory import StateDirectory, StateDirectoryError


def test_a_new_state_directory_is_closed_to_everybody_else(tmp_path: Path) -> None:
    """0700 for it and for each part, whatever the umask; opened again, it is taken as it is."""
    before = os.umask(0)
    try:
        state = StateDirectory.open(tmp_path / "a" / "state")
    finally:
        os.umask(before)
    for directory in (state.path, state.sessions, state.audit, state.ca):
        status = directory.stat()
        assert stat.S_IMODE(status.st_mode) == 0o700 and status.st_uid == os.geteuid()
    assert StateDirectory.open(tmp_path / "a" / "state") == state


def test_a_ca_lives_in_its_part(tmp_path: Path) -> None:
    """The two modules agree about owner and modes."""
    directory = StateDirectory.open(tmp_path / "state").ca
    made = Authority.load_or_create(directory)
    assert Authority.load(directory).fingerprint == made.fingerprint


@pytest.mark.parametrize("part", ["", "sessions", "audit", "ca"])
@pytest.mark.parametrize("mode", [0o750, 0o705, 0o770, 0o701])
def test_a_state_directory_open_to_others_is_refused(tmp_path: Path, part: str, mode: int) -> None:
    """It is not closed silently: somebody may have read or changed what is in it."""
    StateDirectory.open(tmp_path / "state")
    (tmp_path / "state" / part).chmod(mode)
    with pytest.raises(StateDirectoryError, match=f"mode 0{mode:o}") as refusal:
        StateDirectory.open(tmp_path / "state")
    assert "chmod 0700" in refusal.value.hint
    assert stat.S_IMODE((tmp_path / "state" / part).stat().st_mode) == mode


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    """Also one to a directory that is in order: it could be pointed elsewhere tomorrow."""
    StateDirectory.open(tmp_path / "real")
    (tmp_path / "state").symlink_to(tmp_path / "real")
    with pytest.raises(StateDirectoryError, match="not a directory that may be used") as refusal:
        StateDirectory.open(tmp_path / "state")
    assert "symbolic link" in refusal.value.hint


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    """With an error for people, not a traceback; so is a place that cannot be made."""
    (tmp_path / "state").write_text("")
    for path in (tmp_path / "state", tmp_path / "state" / "below"):
        with pytest.raises(StateDirectoryError) as refusal:
            StateDirectory.open(path)
        assert refusal.value.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give directories away")
def test_another_users_state_directory_is_refused(tmp_path: Path) -> None:
    """Even for root: its owner could change it under us."""
    StateDirectory.open(tmp_path / "state")
    os.chown(tmp_path / "state", 65534, -1)
    with pytest.raises(StateDirectoryError, match="belongs to uid 65534") as refusal:
        StateDirectory.open(tmp_path / "state")
    assert refusal.value.hint


def test_a_parent_that_everybody_may_write_is_refused_unless_sticky(tmp_path: Path) -> None:
    """Without the sticky bit (as /tmp has it) anybody could put another directory in this one's place."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(StateDirectoryError, match="every user"):
        StateDirectory.open(tmp_path / "open" / "state")
    (tmp_path / "open").chmod(0o1777)
    assert StateDirectory.open(tmp_path / "open" / "state").path == tmp_path / "open" / "state"
