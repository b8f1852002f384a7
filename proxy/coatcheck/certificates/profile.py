"""What the CA and its leaves are: curves, lifetimes, usages, rotation, as `profile.toml` beside it says.

That file is a copy of the repository's `certs/profile.toml` and gives the reason for each value. This module
imports no cryptography, so that `coatcheck ca new --help` can quote it quickly.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

FILE = Path(__file__).parent / "profile.toml"


@dataclass(frozen=True, slots=True)
class CaProfile:
    """The CA's own certificate."""

    name: str
    """The default common name."""
    curve: str
    hash: str
    """Of the signatures on the CA's certificate and on its leaves."""
    days: int
    """The default lifetime."""
    max_days: int
    backdate_hours: int
    """A certificate is valid from so long before it was made. Leaves, too."""
    path_length: int
    key_usage: tuple[str, ...]
    """RFC 5280, 4.2.1.3."""
    constrained_excludes: tuple[str, ...]
    """Networks that a CA with name constraints excludes."""

    @property
    def max_lifetime(self) -> timedelta:
        return timedelta(days=self.max_days)

    @property
    def backdate(self) -> timedelta:
        return timedelta(hours=self.backdate_hours)


@dataclass(frozen=True, slots=True)
class LeafProfile:
    """The certificate for one host."""

    curve: str
    days: int
    renew_before_days: int
    key_usage: tuple[str, ...]
    extended_key_usage: tuple[str, ...]
    """RFC 5280, 4.2.1.12."""

    @property
    def lifetime(self) -> timedelta:
        return timedelta(days=self.days)

    @property
    def renew_before(self) -> timedelta:
        return timedelta(days=self.renew_before_days)


@dataclass(frozen=True, slots=True)
class RotationProfile:
    """When a CA is replaced, and how long the one before stays trusted."""

    renew_before_days: int
    previous_days: int

    @property
    def renew_before(self) -> timedelta:
        return timedelta(days=self.renew_before_days)

    @property
    def previous(self) -> timedelta:
        return timedelta(days=self.previous_days)


@dataclass(frozen=True, slots=True)
class Profile:
    """The whole file. A key that is missing or unknown is a TypeError."""

    ca: CaProfile
    leaf: LeafProfile
    rotation: RotationProfile

    @classmethod
    def read(cls, text: str) -> Self:
        tables = tomllib.loads(text)
        kinds = {"ca": CaProfile, "leaf": LeafProfile, "rotation": RotationProfile}
        return cls(**{name: kinds[name](**_frozen(table)) for name, table in tables.items()})


def _frozen(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


PROFILE = Profile.read(FILE.read_text(encoding="utf-8"))
