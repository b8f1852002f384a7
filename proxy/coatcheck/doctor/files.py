"""The daemon's own files: state directory, CA, policies, and the time that they remember."""

import sqlite3
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from coatcheck.certificates.authority import Authority, CertificateError
from coatcheck.certificates.profile import PROFILE
from coatcheck.decision.policy import Policy
from coatcheck.doctor.finding import Finding, Subject, ok, problem, warning
from coatcheck.platform.private_files import PrivateFileError, check_private_directory
from coatcheck.policy.bundle.signed import SignedPolicies
from coatcheck.policy.file.problem import PolicyError
from coatcheck.policy.file.public_suffix import list_written
from coatcheck.policy.watch import PolicyWatch
from coatcheck.settings.daemon import Settings, how_to_move
from coatcheck.state.opening import DATABASE_NAME

SUFFIX_LIST_WARNING = timedelta(days=180)
"""Hosting services join the list every week; a wildcard over one that it lacks may get a credential."""
CLOCK_SECONDS = 60.0
"""Between this clock and the highest time that the sessions' database has seen."""


def state_directory(subject: Subject) -> list[Finding]:
    """Ours, 0700, no links: the daemon refuses anything else at its start."""
    check, path = "state directory", subject.settings.state_dir
    if not path.exists() and not path.is_symlink():
        return warning(check, f"{path} does not exist yet", "coatcheck serve makes it at its first start")
    try:
        check_private_directory(path)
        for part in ("sessions", "audit", "ca"):
            if (path / part).exists() or (path / part).is_symlink():
                check_private_directory(path / part)
    except PrivateFileError as error:
        return problem(check, str(error), error.hint)
    if (command := how_to_move(subject.settings)) is not None:
        return warning(
            check,
            f"{path} is at the earlier default, which only commands in one directory find",
            f"stop the daemon, then: {command}",
        )
    return ok(check, f"{path} is ours alone")


def certificate_authority(subject: Subject) -> list[Finding]:
    """There, readable, and valid for a month still."""
    check, directory = "ca", subject.settings.state_dir / "ca"
    if not (directory / "ca.pem").exists() and not (directory / "ca-key.pem").exists():
        return warning(
            check, f"there is no CA in {directory} yet", "coatcheck serve makes one at its first start"
        )
    try:
        authority = Authority.load(directory)
    except CertificateError as error:
        return problem(check, str(error), error.hint)
    left = authority.not_after - datetime.now(UTC)
    if left < PROFILE.rotation.renew_before:
        return warning(
            check,
            f"the CA expires on {authority.not_after:%Y-%m-%d}, in {left.days} days",
            "coatcheck ca new --force, restart the daemon, give sandboxes the new bundle",
        )
    return ok(check, f"valid until {authority.not_after:%Y-%m-%d}")


def read_policies(settings: Settings) -> dict[str, Policy] | list[Finding]:
    """The policies as the daemon would load them, or why it would not. Whether a bundle is older than one
    that was in force, the daemon says."""
    check, path, root = "policy", settings.policy, settings.policy_trust_root
    if not path.exists():
        return problem(
            check, f"{path} does not exist", "set COATCHECK_POLICY to a file or directory of *.yaml"
        )
    try:
        return dict(PolicyWatch(path, signed=SignedPolicies(root) if root is not None else None).read())
    except PolicyError as error:
        first = str(error.problems[0])
        more = f", and {len(error.problems) - 1} more" if len(error.problems) > 1 else ""
        look = f"coatcheck policy {'check' if root is None else 'verify'} {path}"
        return problem(check, f"it would not be loaded: {first}{more}", look)
    except OSError as error:
        return problem(
            check, f"{path} cannot be read: {error.strerror}", "make it readable for the daemon's user"
        )


def policy(subject: Subject) -> list[Finding]:
    """Missing, broken, or so empty that it denies everything."""
    found = read_policies(subject.settings)
    if isinstance(found, list):
        return found
    denying = sorted(name for name, each in found.items() if not each.rules)
    if denying:
        return warning(
            "policy",
            f"{', '.join(denying)}: it has no rule, so every request is refused",
            "write rules; policies/default.yaml shows how",
        )
    rules = sum(len(each.rules) for each in found.values())
    return ok("policy", f"{', '.join(sorted(found))}: {rules} rules")


def public_suffixes(subject: Subject | None = None) -> list[Finding]:
    """The list by which policies are refused wildcards over names that strangers can register."""
    return suffix_list_age(list_written(), datetime.now(UTC).date())


def suffix_list_age(written: date | None, today: date) -> list[Finding]:
    """A list that does not say when it was written counts as old."""
    check, hint = "public suffixes", "install a newer coatcheck, or pip install --upgrade publicsuffixlist"
    if written is None:
        return warning(check, "the public suffix list does not say when it was written", hint)
    age = today - written
    if age > SUFFIX_LIST_WARNING:
        return warning(
            check,
            f"the public suffix list is {age.days} days old ({written}): policies may allow wildcards over "
            "hosting services that are newer",
            hint,
        )
    return ok(check, f"the list is {age.days} days old ({written})")


def wall_clock(subject: Subject) -> list[Finding]:
    """A clock behind what the database has seen: handles expire by the larger of both, so too early."""
    check, path = "clock", subject.settings.state_dir / "sessions" / DATABASE_NAME
    seen = _high_water(path)
    if seen is None:
        return ok(check, "there are no sessions to compare it with")
    behind = seen - time.time()
    if behind > CLOCK_SECONDS:
        at = datetime.fromtimestamp(seen, UTC)
        return problem(
            check,
            f"this clock is {behind:.0f} s behind what the sessions have seen, {at:%Y-%m-%d %H:%M} UTC",
            "set this machine's clock (timedatectl); if it ran ahead before, move "
            f"{path.parent} away: every handle dies with it",
        )
    return ok(check, "not behind the sessions' database")


def _high_water(path: Path) -> float | None:
    """None: no such database, or a daemon has it open (which then watches the clock itself)."""
    if not path.is_file():
        return None
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=0) as connection:
            return float(connection.execute("SELECT high_water FROM meta").fetchone()[0])
    except (sqlite3.Error, TypeError, ValueError):
        return None
