"""Where a daemon's files are when no setting says so: the same places from whatever directory it is started.

Pure: `settings.daemon` reads the environment.
"""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NAME = "coatcheck"
SHIPPED_POLICY = Path(__file__).parents[1] / "policy/shipped/default.yaml"
"""The sample policy, where no directory of policies is found."""
EARLIER = Path("var/coatcheck")
"""The state directory of releases up to 0.1, relative to where the daemon was started."""
SYSTEM_STATE, SYSTEM_CACHE = Path("/var/lib") / NAME, Path("/var/cache") / NAME
"""For a user without a home directory."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the default places follow from."""

    environment: Mapping[str, str]
    home: Path | None
    """None: the user has none."""
    directory: Path
    """The current one."""
    clone: Path
    """Where `.venv` is, if this is a clone with one."""


def state_directory(around: Surroundings) -> Path:
    """systemd's, the user's own, or one at the earlier default that no newer one has replaced."""
    given = _of_unit(around, "STATE_DIRECTORY")
    if given is not None:
        return given
    fixed = _users(around, "XDG_STATE_HOME", Path(".local/state")) or SYSTEM_STATE
    if not holds_state(fixed):
        for where in (around.directory, around.clone):
            if holds_state(where / EARLIER):
                return where / EARLIER
    return fixed


def runs_directory(around: Surroundings) -> Path:
    """Where the audit logs of daemons are kept that lived for one command. It is beside the state directory,
    so that one at the earlier default can be moved to its place."""
    fixed = _users(around, "XDG_STATE_HOME", Path(".local/state")) or SYSTEM_STATE
    return fixed.with_name(f"{NAME}-runs")


def runtime_directory(around: Surroundings) -> Path | None:
    """systemd's; None: below the state directory."""
    return _of_unit(around, "RUNTIME_DIRECTORY")


def cache_directory(around: Surroundings) -> Path:
    """The user's own; systemd's unit of ours names none."""
    return _users(around, "XDG_CACHE_HOME", Path(".cache")) or SYSTEM_CACHE


def policies(around: Surroundings) -> Path:
    """Where the policies are: systemd's place, the user's own, `policies` here, or the sample policy.

    A unit with a configuration directory never falls back to the sample: its operator chose the place.
    """
    given = _of_unit(around, "CONFIGURATION_DIRECTORY")
    if given is not None:
        return given / "policies"
    users = _users(around, "XDG_CONFIG_HOME", Path(".config"))
    for place in (users, around.directory):
        if place is not None and (place / "policies").is_dir():
            return place / "policies"
    return SHIPPED_POLICY


def holds_state(path: Path) -> bool:
    """Whether a daemon has kept its state there."""
    return (path / "sessions").is_dir()


def how_to_move(state: Path, around: Surroundings) -> str | None:
    """The command that moves a state directory from the earlier default; None: it is not there."""
    fixed = _users(around, "XDG_STATE_HOME", Path(".local/state"))
    if fixed is None or state not in (around.directory / EARLIER, around.clone / EARLIER):
        return None
    if holds_state(fixed) or not holds_state(state):
        return None
    parent, source, target = (shlex.quote(str(path)) for path in (fixed.parent, state, fixed))
    return f"mkdir -p {parent} && mv -T {source} {target}"


def _of_unit(around: Surroundings, name: str) -> Path | None:
    """The directory of ours that systemd made for this unit (systemd.exec(5): a list, separated by colons).
    Another service that calls the command has directories of other names."""
    for part in around.environment.get(name, "").split(":"):
        path = Path(part)
        if path.is_absolute() and path.name == NAME:
            return path
    return None


def _users(around: Surroundings, variable: str, below_home: Path) -> Path | None:
    """A directory of the XDG base directory specification, which says to ignore relative values."""
    given = around.environment.get(variable, "")
    if os.path.isabs(given):
        return Path(given) / NAME
    return around.home / below_home / NAME if around.home is not None else None
