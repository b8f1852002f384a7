"""State directory, CA, policies and clock: each mistake made for real."""

import shutil
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from coatcheck.certificates.authority import Authority
from coatcheck.decision.policy import Policy
from coatcheck.doctor.files import (
    certificate_authority,
    policy,
    public_suffixes,
    read_policies,
    state_directory,
    suffix_list_age,
    wall_clock,
)
from coatcheck.doctor.finding import Level
from coatcheck.platform.state_directory import StateDirectory
from coatcheck.policy.shipped import POLICY
from coatcheck.state.clock import Clock
from coatcheck.state.state import State
from tests.doctor.subject import only, subject


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    return StateDirectory.open(tmp_path / "state")


def test_a_missing_state_directory_is_no_mistake_yet(tmp_path: Path) -> None:
    """The first start makes it."""
    assert only(state_directory(subject(tmp_path))).level is Level.WARNING


def test_state_at_the_earlier_default_is_said_with_the_command_that_moves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It works, and only from the directory that it is in."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    StateDirectory.open(tmp_path / "var/coatcheck")
    found = only(state_directory(subject(tmp_path, state_dir=tmp_path / "var/coatcheck")))
    assert found.level is Level.WARNING
    assert f"mv -T {tmp_path}/var/coatcheck {tmp_path}/home/.local/state/coatcheck" in found.hint


@pytest.mark.parametrize("part", ["", "sessions", "audit", "ca"])
def test_an_open_state_directory_is_found(part: str, state: StateDirectory, tmp_path: Path) -> None:
    """It, or any part of it."""
    assert only(state_directory(subject(tmp_path))).level is Level.OK
    (state.path / part).chmod(0o755)
    found = only(state_directory(subject(tmp_path)))
    assert found.level is Level.PROBLEM and "mode 0755, wanted 0700" in found.message


def test_a_state_directory_that_is_a_link_is_found(state: StateDirectory, tmp_path: Path) -> None:
    """A link could be pointed elsewhere afterwards."""
    shutil.move(state.path, tmp_path / "elsewhere")
    state.path.symlink_to(tmp_path / "elsewhere")
    assert only(state_directory(subject(tmp_path))).level is Level.PROBLEM


def test_a_ca_that_ends_soon_or_has_ended(state: StateDirectory, tmp_path: Path) -> None:
    """A month before, a warning; afterwards, a problem."""
    assert only(certificate_authority(subject(tmp_path))).level is Level.WARNING
    Authority.create(state.ca, days=365)
    assert only(certificate_authority(subject(tmp_path))).level is Level.OK
    Authority.create(state.ca, days=20, overwrite=True)
    found = only(certificate_authority(subject(tmp_path)))
    assert found.level is Level.WARNING and "in 19 days" in found.message
    earlier = (datetime.now(UTC) - timedelta(days=40)).timestamp()
    Authority.create(state.ca, days=30, overwrite=True, clock=lambda: earlier)
    found = only(certificate_authority(subject(tmp_path)))
    assert found.level is Level.PROBLEM and "expired on" in found.message


def test_a_ca_key_that_others_may_read_is_found(state: StateDirectory, tmp_path: Path) -> None:
    """It is burnt, and the hint says so."""
    Authority.create(state.ca)
    (state.ca / "ca-key.pem").chmod(0o644)
    found = only(certificate_authority(subject(tmp_path)))
    assert found.level is Level.PROBLEM and "replace it" in found.hint


def test_policies_missing_broken_empty_and_good(tmp_path: Path) -> None:
    """As the daemon would read them."""
    policies = tmp_path / "policies"
    assert "does not exist" in only(policy(subject(tmp_path))).message
    policies.mkdir(mode=0o755)
    assert "no policy file is here" in only(policy(subject(tmp_path))).message
    (policies / "default.yaml").write_text("version: 1\nowner: me\nrulez: []\n")
    (policies / "default.yaml").chmod(0o644)
    found = only(policy(subject(tmp_path)))
    assert found.level is Level.PROBLEM and "default.yaml:3:1: error: " in found.message
    assert found.hint == f"coatcheck policy check {policies}"
    (policies / "default.yaml").write_text("version: 1\nowner: me\n")
    found = only(policy(subject(tmp_path)))
    assert found.level is Level.WARNING and "every request is refused" in found.message
    shutil.copy(POLICY, policies / "default.yaml")
    assert only(policy(subject(tmp_path))).message == "default: 5 rules"
    read = read_policies(subject(tmp_path).settings)
    assert isinstance(read, dict) and isinstance(read["default"], Policy)


def test_an_old_public_suffix_list_is_warned_about() -> None:
    """After 180 days, and when nobody knows."""
    written = date(2026, 1, 1)
    found = only(suffix_list_age(written, written + timedelta(days=180)))
    assert (found.level, found.message) == (Level.OK, "the list is 180 days old (2026-01-01)")
    found = only(suffix_list_age(written, written + timedelta(days=181)))
    assert found.level is Level.WARNING and "is 181 days old (2026-01-01)" in found.message
    assert "pip install --upgrade publicsuffixlist" in found.hint
    assert only(suffix_list_age(None, written)).level is Level.WARNING
    assert "days old" in only(public_suffixes()).message  # the installed one, whose age depends on today


def test_a_clock_that_stepped_back_is_found(state: StateDirectory, tmp_path: Path) -> None:
    """Sessions that were opened an hour ahead of now remember that hour."""
    assert only(wall_clock(subject(tmp_path))).level is Level.OK
    ahead = Clock(wall=lambda: time.time() + 3600)
    opened = State.open(state.sessions, emit=lambda event: None, clock=ahead)
    opened.sweep()
    from coatcheck.policy.checking import load_file
    from coatcheck.state.sessions import NewSession

    opened.swap_policies({"default": load_file(POLICY)})
    opened.open_session(NewSession("acme", "agent", "default"), "test")
    opened.close()
    found = only(wall_clock(subject(tmp_path)))
    assert found.level is Level.PROBLEM and "s behind what the sessions have seen" in found.message
