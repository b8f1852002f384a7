"""Keys are ours alone on disk, rotate with an overlap, and lose their private half when retired."""

import json
import stat
from pathlib import Path

import pytest

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.handle import Claims, verify
from coatcheck.platform.private_files import PrivateFileError
from coatcheck.state.errors import StateError
from coatcheck.state.signing_keys import FILE_NAME, SigningKeys

CLAIMS = Claims("ses_a", "openai", 1, 1_000, 2_000, "j1")


def test_keys_are_the_same_after_a_restart(tmp_path: Path) -> None:
    """A handle that was signed before counts after."""
    handle = SigningKeys.open(tmp_path, 0.0).sign(CLAIMS)
    assert verify(handle, SigningKeys.open(tmp_path, 1.0).current) == CLAIMS


def test_an_old_handle_counts_until_it_can_only_be_expired(tmp_path: Path) -> None:
    """Rotation with overlap: the new key signs, the old one verifies for one maximum age."""
    keys = SigningKeys.open(tmp_path, 1_000.0)
    old = keys.sign(CLAIMS)
    keys.rotate(1_100.0, max_age=900.0)
    new = keys.sign(CLAIMS)
    assert old.split(".")[0] != new.split(".")[0]
    for current in (keys.current, SigningKeys.open(tmp_path, 1_200.0).current):
        assert verify(old, current) == verify(new, current) == CLAIMS
    assert not keys.prune(1_999.0)
    assert keys.prune(2_000.0)
    for current in (keys.current, SigningKeys.open(tmp_path, 2_000.0).current):
        denied = verify(old, current)
        assert isinstance(denied, Deny) and denied.reason is Reason.HANDLE_UNKNOWN
        assert verify(new, current) == CLAIMS


def test_a_retired_key_can_sign_nothing_more(tmp_path: Path) -> None:
    """Its private half is gone from the disk."""
    keys = SigningKeys.open(tmp_path, 0.0)
    private = json.loads((tmp_path / FILE_NAME).read_bytes())["active"]["private"]
    keys.rotate(1.0, max_age=900.0)
    assert private not in (tmp_path / FILE_NAME).read_text()


def test_new_keys_kill_every_handle(tmp_path: Path) -> None:
    """After the state was lost or rolled back nothing that was signed counts."""
    handle = SigningKeys.open(tmp_path, 0.0).sign(CLAIMS)
    assert isinstance(verify(handle, SigningKeys.new(tmp_path, 1.0).current), Deny)
    assert isinstance(verify(handle, SigningKeys.open(tmp_path, 1.0).current), Deny)


def test_the_file_is_ours_alone(tmp_path: Path) -> None:
    """0600, and refused when somebody loosened it."""
    SigningKeys.open(tmp_path, 0.0)
    path = tmp_path / FILE_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(PrivateFileError):
        SigningKeys.open(tmp_path, 0.0)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"active": 1}', '{"active": {"private": "zz"}}'])
def test_a_damaged_file_stops_the_start_and_is_not_quoted(tmp_path: Path, content: str) -> None:
    """New keys in silence would hide an attack; the message says what to do and shows no key."""
    path = tmp_path / FILE_NAME
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(StateError, match="cannot be read") as caught:
        SigningKeys.open(tmp_path, 0.0)
    assert "remove it" in caught.value.hint and caught.value.__cause__ is None


def test_keys_do_not_show_themselves(tmp_path: Path) -> None:
    """Neither in repr nor in str."""
    keys = SigningKeys.open(tmp_path, 0.0)
    private = json.loads((tmp_path / FILE_NAME).read_bytes())["active"]["private"]
    assert private not in f"{keys!r} {keys} {keys.current!r} {vars(keys)}"
