"""Where files are when no setting says so: the same from every directory, and no session is lost."""

import contextlib
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from coatcheck.policy.shipped import POLICY
from coatcheck.settings import places
from coatcheck.settings.daemon import Settings, load
from coatcheck.settings.explained import SettingsProblem, load_settings


@pytest.fixture
def around(tmp_path: Path) -> places.Surroundings:
    """A person at home, in a project, with a clone of ours elsewhere."""
    for name in ("home", "project", "clone"):
        (tmp_path / name).mkdir()
    return places.Surroundings({}, tmp_path / "home", tmp_path / "project", tmp_path / "clone")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tuple(os.environ):
        if name.startswith("COATCHECK_"):
            monkeypatch.delenv(name)


def kept(directory: Path) -> Path:
    """A state directory that a daemon has used."""
    state = directory / places.EARLIER
    (state / "sessions").mkdir(parents=True)
    return state


def test_the_state_directory_does_not_depend_on_the_current_one(around: places.Surroundings) -> None:
    """Otherwise `run` in another directory would not find the daemon that serves."""
    assert around.home is not None
    expected = around.home / ".local/state/coatcheck"
    assert places.state_directory(around) == expected
    assert places.state_directory(replace(around, directory=around.clone)) == expected


def test_the_users_own_state_home_counts_if_it_is_absolute(around: places.Surroundings) -> None:
    """As the XDG base directory specification has it."""
    own = replace(around, environment={"XDG_STATE_HOME": "/srv/state"})
    assert places.state_directory(own) == Path("/srv/state/coatcheck")
    relative = replace(around, environment={"XDG_STATE_HOME": "state"})
    assert places.state_directory(relative) == places.state_directory(around)


def test_a_user_without_a_home_gets_the_systems_place(around: places.Surroundings) -> None:
    """A container with a bare user id."""
    homeless = replace(around, home=None)
    assert places.state_directory(homeless) == Path("/var/lib/coatcheck")
    assert places.cache_directory(homeless) == Path("/var/cache/coatcheck")


def test_a_systemd_unit_names_the_places(around: places.Surroundings) -> None:
    """Ours, among several; another service that calls the command has its own directories."""
    unit = replace(
        around,
        environment={
            "STATE_DIRECTORY": "/var/lib/other:/var/lib/coatcheck",
            "RUNTIME_DIRECTORY": "/run/coatcheck",
            "CONFIGURATION_DIRECTORY": "/etc/coatcheck",
        },
    )
    assert places.state_directory(unit) == Path("/var/lib/coatcheck")
    assert places.runtime_directory(unit) == Path("/run/coatcheck")
    assert places.policies(unit) == Path("/etc/coatcheck/policies")  # also while it is missing: no sample
    other = replace(
        around, environment={"STATE_DIRECTORY": "/var/lib/launcher", "RUNTIME_DIRECTORY": "/run/l"}
    )
    assert places.state_directory(other) == places.state_directory(around)
    assert places.runtime_directory(other) is None


@pytest.mark.parametrize("where", ["directory", "clone"])
def test_state_at_the_earlier_default_is_kept_until_it_is_moved(
    around: places.Surroundings, where: str
) -> None:
    """A new, empty one would revoke every session. The printed command moves it, and then it is found."""
    state = kept(getattr(around, where))
    assert places.state_directory(around) == state
    command = places.how_to_move(state, around)
    assert command is not None
    subprocess.run(["/bin/sh", "-c", command], check=True, timeout=10)
    moved = places.state_directory(around)
    assert around.home is not None and moved == around.home / ".local/state/coatcheck"
    assert (moved / "sessions").is_dir() and not state.exists()
    assert places.how_to_move(moved, around) is None


def test_state_at_the_new_place_is_not_displaced_by_an_old_one(around: places.Surroundings) -> None:
    """Anyone who unpacks an archive with `var/coatcheck` in it does not get another CA from there."""
    assert around.home is not None
    (around.home / ".local/state/coatcheck/sessions").mkdir(parents=True)
    old = kept(around.directory)
    assert places.state_directory(around) == around.home / ".local/state/coatcheck"
    assert places.how_to_move(old, around) is None


def test_policies_are_the_users_then_the_directorys_then_the_sample(around: places.Surroundings) -> None:
    """From any directory a daemon has a policy, and the user's own place wins."""
    assert places.policies(around) == places.SHIPPED_POLICY == POLICY
    (around.directory / "policies").mkdir()
    assert places.policies(around) == around.directory / "policies"
    assert around.home is not None
    (around.home / ".config/coatcheck/policies").mkdir(parents=True)
    assert places.policies(around) == around.home / ".config/coatcheck/policies"


def test_every_path_is_absolute_once_settings_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox that changes its directory must still find its CA; `~` means the same as in a shell."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    fields = [
        name for name, field in Settings.model_fields.items() if field.annotation in (Path, Path | None)
    ]
    assert {"state_dir", "policy", "vault_token_file", "page_oidc_ca_file"} <= set(fields)
    alone = {}
    for name in fields:
        with contextlib.suppress(ValidationError):  # of one that needs another beside it
            alone[name] = getattr(load(**{name: Path(f"a/{name}")}), name)
    assert len(alone) > 10
    assert alone == {name: tmp_path / f"a/{name}" for name in alone}
    settings = load(
        state_dir=Path("a/state_dir"),
        proxy_client_ca=Path("~/x"),
        proxy_tls_certificate=Path("a/x"),
        page_oidc_ca_file=Path("a/oidc"),
        page_oidc_issuer="https://h",
        page_oidc_client_id="c",
        shared_state="postgresql://h/d",
        shared_state_key=Path("a/key"),
    )
    assert settings.page_oidc_ca_file == tmp_path / "a/oidc"
    assert settings.shared_state_key == tmp_path / "a/key"
    assert settings.state_dir == tmp_path / "a/state_dir"
    assert settings.proxy_client_ca == tmp_path / "home/x"
    assert all(path.is_absolute() for path in (load().runtime, load().control, load().cache))


@pytest.mark.parametrize(("value", "said"), [("", "it is empty"), ("~nobody-of-that-name/x", "its ~")])
def test_a_path_that_leads_nowhere_is_refused(monkeypatch: pytest.MonkeyPatch, value: str, said: str) -> None:
    """An empty variable would be the current directory."""
    monkeypatch.setenv("COATCHECK_SECRETS_DIR", value)
    with pytest.raises(SettingsProblem, match=said):
        load_settings()


def test_a_current_directory_that_is_gone_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is relative to it is refused."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load_settings(state_dir=tmp_path).state_dir == tmp_path
    with pytest.raises(SettingsProblem, match="the current directory is gone"):
        load_settings(state_dir=Path("state"))
