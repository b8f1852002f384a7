"""The tables of a fleet, the two roles, and how an older schema is brought forward.

Two roles. `coatcheck_migrator` owns the tables; an operator runs the SQL of a release as that role, or as a
member of it. `coatcheck_runtime` reads and writes rows and can change no table; daemons log in as members of
it. A release only adds to the tables of the last one, so that daemons of that release can go on running on
them. A change that they cannot run on raises `oldest`.
"""

from typing import Final

VERSION: Final = 1
"""Of the tables that this release needs."""
MIGRATOR: Final = "coatcheck_migrator"
RUNTIME: Final = "coatcheck_runtime"

SEALED: Final = ("sessions", "handles", "keys", "approvals")
"""The tables whose rows are sealed and counted in the digest of the fleet's row."""

_FIRST: Final = """
CREATE TABLE {s}.fleet (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  incarnation bigint NOT NULL, rev bigint NOT NULL, sealed bytea NOT NULL
);
CREATE TABLE {s}.sessions (
  id text PRIMARY KEY, origin text NOT NULL, status text NOT NULL, sealed bytea NOT NULL, rev bigint NOT NULL
);
CREATE UNIQUE INDEX sessions_origin ON {s}.sessions (origin) WHERE status = 'live';
CREATE INDEX sessions_rev ON {s}.sessions (rev);
CREATE TABLE {s}.handles (id text PRIMARY KEY, sealed bytea NOT NULL, rev bigint NOT NULL);
CREATE INDEX handles_rev ON {s}.handles (rev);
CREATE TABLE {s}.keys (id text PRIMARY KEY, sealed bytea NOT NULL, rev bigint NOT NULL);
CREATE TABLE {s}.approvals (id text PRIMARY KEY, sealed bytea NOT NULL, rev bigint NOT NULL);
CREATE INDEX approvals_rev ON {s}.approvals (rev);
CREATE TABLE {s}.leases (session text PRIMARY KEY, sealed bytea NOT NULL, at xid8 NOT NULL);
CREATE INDEX leases_at ON {s}.leases (at);
CREATE TABLE {s}.members (name text PRIMARY KEY, heard timestamptz NOT NULL);
CREATE UNLOGGED TABLE {s}.limits_since (
  one boolean PRIMARY KEY DEFAULT true CHECK (one), at double precision NOT NULL
);
CREATE UNLOGGED TABLE {s}.limits (
  name text PRIMARY KEY, until double precision NOT NULL, added double precision NOT NULL
);
CREATE UNLOGGED TABLE {s}.running (
  name text, member text, count integer NOT NULL, at timestamptz NOT NULL, PRIMARY KEY (name, member)
);
CREATE UNLOGGED TABLE {s}.boards (member text PRIMARY KEY, sealed bytea NOT NULL, at timestamptz NOT NULL);
GRANT SELECT, INSERT, UPDATE, DELETE ON
  {s}.fleet, {s}.sessions, {s}.handles, {s}.keys, {s}.approvals, {s}.leases, {s}.members,
  {s}.limits_since, {s}.limits, {s}.running, {s}.boards TO {runtime};
"""
STEPS: Final = {1: (_FIRST, 1)}
"""By version: the SQL that leads to it from the one before, and the oldest version whose daemons may run on
it. `{s}` is the fleet's schema."""


_STEP: Final = """DO $do$ BEGIN
IF (SELECT coalesce(max(version), 0) FROM {s}.schema_version) < {version} THEN
{step}INSERT INTO {s}.schema_version VALUES ({version}, {oldest});
END IF;
END $do$;
"""


def quoted(fleet: str) -> str:
    """The fleet's schema, as SQL writes it. Its name has no quotes (`shared_state_name`)."""
    return f'"{fleet}"'


def channel(fleet: str) -> str:
    """On which daemons of the fleet tell each other that something was committed."""
    return f"coatcheck_{fleet}"


def roles_sql(fleet: str) -> str:
    """What an administrator of the database runs once: both roles, and the schema."""
    create = "\n".join(
        f"  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN"
        f" CREATE ROLE {role} NOLOGIN; END IF;"
        for role in (MIGRATOR, RUNTIME)
    )
    return f"""-- Once, as an administrator of the database.
BEGIN;
DO $do$ BEGIN
{create}
END $do$;
GRANT {MIGRATOR} TO CURRENT_USER;
CREATE SCHEMA IF NOT EXISTS {quoted(fleet)} AUTHORIZATION {MIGRATOR};
COMMIT;
"""


def tables_sql(fleet: str, steps: "dict[int, tuple[str, int]] | None" = None) -> str:
    """What is run for each release, before its first daemon starts. Again is no error."""
    schema = quoted(fleet)
    parts = []
    for version, (sql, oldest) in sorted((steps or STEPS).items()):
        made = sql.format(s=schema, runtime=RUNTIME)
        parts.append(_STEP.format(s=schema, version=version, oldest=oldest, step=made))
    return f"""-- For each release, as {MIGRATOR} or a member of it. Older daemons go on running meanwhile.
BEGIN;
SET LOCAL ROLE {MIGRATOR};
SELECT pg_advisory_xact_lock(hashtext('coatcheck {fleet}'));
GRANT USAGE ON SCHEMA {schema} TO {RUNTIME};
CREATE TABLE IF NOT EXISTS {schema}.schema_version (version integer NOT NULL, oldest integer NOT NULL);
GRANT SELECT ON {schema}.schema_version TO {RUNTIME};
{"".join(parts)}COMMIT;
"""
