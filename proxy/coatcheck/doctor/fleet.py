"""State that a fleet shares: really asked, with the daemon's own rights, and nothing is changed."""

import time
from typing import Any

from coatcheck.doctor.finding import Finding, Subject, ok, problem, warning
from coatcheck.fleet.connection import Connector, SharedStateDown, explained
from coatcheck.fleet.scripts import COMMANDS
from coatcheck.fleet.seal import read_key
from coatcheck.platform.private_files import PrivateFileError

CHECK = "shared state"
SECONDS = 3.0
OUTSIDE = "coatcheck-doctor-looks-whether-it-may-read-this"


def shared_state(subject: Subject) -> list[Finding]:
    """Key file, connection, rights, clock, and what Redis does when it is full."""
    settings = subject.settings
    server, key = settings.shared_state_server, settings.shared_state_key
    if server is None or key is None:
        return []
    found: list[Finding] = []
    try:
        read_key(key)
        if key.stat().st_mode & 0o040:
            what = f"the group of {key} may read the key of everything in the shared state"
            found += warning(CHECK, what, "chmod 0600, unless it is mounted so (a Kubernetes secret)")
    except PrivateFileError as error:
        return problem(CHECK, str(error), error.hint)
    try:
        client = Connector(server, SECONDS).connect()
        with client:
            client.ping()
            seconds, micros = client.time()
            found += _clock(float(seconds) + micros / 1e6, settings.shared_state_max_skew)
            found += _rights(client, settings.shared_state_name)
    except SharedStateDown as error:
        return [*found, *problem(CHECK, str(error), "check the COATCHECK_SHARED_STATE… settings")]
    except Exception as error:  # noqa: BLE001 - redis-py's, the system's, ssl's
        hint = "check COATCHECK_SHARED_STATE, its password, certificates and rights; see docs/fleet.md"
        return [*found, *problem(CHECK, explained(server, error), hint)]
    return found or ok(CHECK, f"{server} answers, with no more rights than it takes")


def _clock(theirs: float, most: float) -> list[Finding]:
    apart = abs(time.time() - theirs)
    if apart <= most / 2:
        return []
    what = f"its clock and this host's are {apart:.1f} s apart; above {most:g} s everything is refused"
    return (problem if apart > most else warning)(CHECK, what, "set both clocks by NTP")


def _rights(client: Any, fleet: str) -> list[Finding]:
    found: list[Finding] = []
    if _may(lambda: client.get(OUTSIDE)):
        what = f"the daemon's user may read keys that are not the fleet's ({OUTSIDE})"
        found += warning(CHECK, what, f"give it these alone: ~coatcheck:{{{fleet}}}:*")
    policies: list[str] = []
    if _may(lambda: policies.append(client.config_get("maxmemory-policy").get("maxmemory-policy", ""))):
        rights = " ".join(f"+{each}" for each in COMMANDS)
        found += warning(CHECK, "the daemon's user may change Redis's settings", f"-@all {rights}")
    if policies and policies[0] != "noeviction":
        what = f"Redis drops keys when it is full (maxmemory-policy {policies[0]}): every session would end"
        found += problem(CHECK, what, "set maxmemory-policy noeviction")
    return found


def _may(command: Any) -> bool:
    from redis.exceptions import NoPermissionError

    try:
        command()
    except NoPermissionError:
        return False
    return True
