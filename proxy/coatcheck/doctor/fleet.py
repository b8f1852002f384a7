"""State that a fleet shares: really asked, with the daemon's own rights, and nothing is changed."""

import time
from typing import TYPE_CHECKING

from coatcheck.doctor.finding import Finding, Subject, ok, problem, warning
from coatcheck.fleet import schema
from coatcheck.fleet.connection import Connector, SharedStateDown, explained
from coatcheck.fleet.seal import read_key
from coatcheck.platform.private_files import PrivateFileError

if TYPE_CHECKING:
    from coatcheck.fleet.postgres import Connection

CHECK = "shared state"
SECONDS = 3.0
_RIGHTS = """
SELECT
  has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE'),
  has_schema_privilege(n.oid, 'CREATE'),
  (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %s AND relname = 'fleet'
"""


def shared_state(subject: Subject) -> list[Finding]:
    """Key file, connection, tables, rights, clock, and whether what is committed stays."""
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
        with Connector(server, SECONDS, "coatcheck doctor").connect() as connection:
            connection.deadline = time.monotonic() + SECONDS
            found += _clock(connection, settings.shared_state_max_skew)
            found += _tables(connection, settings.shared_state_name)
            found += _kept(connection)
    except SharedStateDown as error:
        return [*found, *problem(CHECK, str(error), "check the COATCHECK_SHARED_STATE… settings")]
    except Exception as error:  # noqa: BLE001 - psycopg's, the system's, ssl's
        hint = "check COATCHECK_SHARED_STATE, its user, password, certificates and rights; see docs/fleet.md"
        return [*found, *problem(CHECK, explained(server, error), hint)]
    return found or ok(CHECK, f"{server} answers, with no more rights than it takes")


def _clock(connection: "Connection", most: float) -> list[Finding]:
    [[(theirs,)]] = connection.together([("SELECT extract(epoch FROM clock_timestamp())::float8", ())])
    apart = abs(time.time() - theirs)
    if apart <= most / 2:
        return []
    what = f"its clock and this host's are {apart:.1f} s apart; above {most:g} s everything is refused"
    return (problem if apart > most else warning)(CHECK, what, "set both clocks by NTP")


def _tables(connection: "Connection", fleet: str) -> list[Finding]:
    """Version, and neither too few rights nor too many."""
    [rights] = connection.together([(_RIGHTS, (fleet,))])
    if not rights:
        hint = "run what `coatcheck fleet roles` and `coatcheck fleet tables` print; see docs/fleet.md"
        return problem(CHECK, f"the database has no tables of the fleet {fleet}", hint)
    [(reads, creates, superuser)] = rights
    found: list[Finding] = []
    if superuser:
        what = "the daemon's database user is a superuser"
        found += warning(CHECK, what, f"give it the role {schema.RUNTIME} and nothing else")
    elif creates:
        what = "the daemon's database user may change the fleet's tables"
        found += warning(CHECK, what, f"give it the role {schema.RUNTIME}, not {schema.MIGRATOR}")
    if not reads:
        hint = f"GRANT {schema.RUNTIME} TO the user"
        return [
            *found,
            *problem(CHECK, "the daemon's database user may not write to the fleet's tables", hint),
        ]
    [[(version, oldest)]] = connection.together(
        [(f"SELECT max(version), max(oldest) FROM {schema.quoted(fleet)}.schema_version", ())]  # noqa: S608
    )
    if (version or 0) < schema.VERSION or (oldest or 0) > schema.VERSION:
        what = f"the fleet's tables are of version {version}, this coatcheck needs {schema.VERSION}"
        found += problem(CHECK, what, "run what `coatcheck fleet tables` of the newest release prints")
    return found


def _kept(connection: "Connection") -> list[Finding]:
    """What would lose commits that were answered: a crash would end every session."""
    names = ("fsync", "full_page_writes")
    values = connection.together([(f"SHOW {name}", ()) for name in names])
    off = [name for name, [(value,)] in zip(names, values, strict=True) if value == "off"]
    if not off:
        return []
    what = f"the database may lose what it has answered ({', '.join(off)} is off): every session would end"
    return problem(CHECK, what, f"set {off[0]} = on")
