"""Every SQL statement that a daemon sends. `{s}` is the fleet's schema, `{t}` one of `schema.SEALED`."""

from typing import Final

BEGIN: Final = "BEGIN"
BEGIN_ONE_MOMENT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ"
COMMIT: Final = "COMMIT"
ROLLBACK: Final = "ROLLBACK"
NOT_FLUSHED: Final = "SET LOCAL synchronous_commit = off"
"""For what a crash may undo: renewals, limits, boards."""

# --- reading -----------------------------------------------------------------------------------------------

HERE: Final = """
INSERT INTO {s}.members (name, heard) VALUES (%s, now())
ON CONFLICT (name) DO UPDATE SET heard = excluded.heard
"""
CLOCK: Final = """
SELECT extract(epoch FROM clock_timestamp())::float8, count(*), pg_snapshot_xmin(pg_current_snapshot())::text,
  (SELECT max(version) FROM {s}.schema_version), (SELECT max(oldest) FROM {s}.schema_version)
FROM {s}.members WHERE heard > now() - make_interval(secs => %s)
"""
HEAD: Final = "SELECT incarnation, rev, sealed FROM {s}.fleet"
ROWS: Final = """
SELECT 'sessions', id, rev, sealed, status, origin FROM {s}.sessions WHERE rev > %(rev)s
UNION ALL SELECT 'handles', id, rev, sealed, '', '' FROM {s}.handles WHERE rev > %(rev)s
UNION ALL SELECT 'keys', id, rev, sealed, '', '' FROM {s}.keys WHERE rev > %(rev)s
UNION ALL SELECT 'approvals', id, rev, sealed, '', '' FROM {s}.approvals WHERE rev > %(rev)s
"""
LEASES: Final = "SELECT session, at::text, sealed FROM {s}.leases WHERE at >= %s::text::xid8"

# --- changing ----------------------------------------------------------------------------------------------

LOCK: Final = "SELECT incarnation, rev, sealed FROM {s}.fleet FOR UPDATE"
SESSIONS_OF: Final = """
SELECT 'sessions', id, rev, sealed, status, origin FROM {s}.sessions
WHERE id = ANY(%s) OR (origin = ANY(%s) AND status = 'live')
"""
ROWS_OF: Final = "SELECT '{t}', id, rev, sealed, '', '' FROM {s}.{t} WHERE id = ANY(%s)"
PUT_SESSIONS: Final = """
INSERT INTO {s}.sessions (id, rev, sealed, status, origin)
SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bytea[], %s::text[], %s::text[])
ON CONFLICT (id) DO UPDATE SET
  rev = excluded.rev, sealed = excluded.sealed, status = excluded.status, origin = excluded.origin
"""
PUT: Final = """
INSERT INTO {s}.{t} (id, rev, sealed) SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bytea[])
ON CONFLICT (id) DO UPDATE SET rev = excluded.rev, sealed = excluded.sealed
"""
PUT_HEAD: Final = "UPDATE {s}.fleet SET incarnation = %s, rev = %s, sealed = %s"
NOTIFY: Final = "SELECT pg_notify(%s, %s)"
RENEW: Final = """
INSERT INTO {s}.leases (session, sealed, at)
SELECT session, sealed, pg_current_xact_id() FROM unnest(%s::text[], %s::bytea[]) AS given(session, sealed)
WHERE EXISTS (SELECT FROM {s}.sessions WHERE id = session AND status = 'live') ORDER BY session
ON CONFLICT (session) DO UPDATE SET sealed = excluded.sealed, at = excluded.at
"""
FIRST_HEAD: Final = (
    "INSERT INTO {s}.fleet (incarnation, rev, sealed) VALUES (0, 0, '') ON CONFLICT DO NOTHING"
)
NEVER_COUNTED: Final = "INSERT INTO {s}.limits_since (at) VALUES (0) ON CONFLICT DO NOTHING"

# --- dropping ----------------------------------------------------------------------------------------------

DROP_ALL: Final = "DELETE FROM {s}.{t}"
DROP_ALL_LEASES: Final = "DELETE FROM {s}.leases"
DROP: Final = "DELETE FROM {s}.{t} WHERE id = ANY(%s)"
DROP_LEASES: Final = "DELETE FROM {s}.leases WHERE session = ANY(%s)"
DROP_USELESS_LEASES: Final = """
DELETE FROM {s}.leases WHERE NOT EXISTS (SELECT FROM {s}.sessions WHERE id = session)
"""
DROP_MEMBERS: Final = "DELETE FROM {s}.members WHERE heard < now() - interval '1 hour'"
DROP_RUNNING: Final = "DELETE FROM {s}.running WHERE at < now() - make_interval(secs => %s)"
DROP_BOARDS: Final = "DELETE FROM {s}.boards WHERE at < now() - make_interval(secs => %s)"
DROP_LIMITS: Final = "DELETE FROM {s}.limits WHERE until < extract(epoch FROM clock_timestamp()) - 60"

# --- limits and boards -------------------------------------------------------------------------------------

COUNTED_FROM_NOW: Final = """
INSERT INTO {s}.limits_since (at) VALUES (extract(epoch FROM clock_timestamp())) ON CONFLICT DO NOTHING
"""
SPEND: Final = """
INSERT INTO {s}.limits AS l (name, until, added)
SELECT name, greatest(at + whole, extract(epoch FROM clock_timestamp())) + added, added
FROM unnest(%s::text[], %s::float8[], %s::float8[]) AS given(name, added, whole), {s}.limits_since
ORDER BY name
ON CONFLICT (name) DO UPDATE SET added = excluded.added,
  until = greatest(l.until, extract(epoch FROM clock_timestamp())) + excluded.added
RETURNING name, until - extract(epoch FROM clock_timestamp())::float8
"""
RUN: Final = """
INSERT INTO {s}.running (name, member, count, at)
SELECT name, %s, count, now() FROM unnest(%s::text[], %s::int[]) AS given(name, count) ORDER BY name
ON CONFLICT (name, member) DO UPDATE SET count = excluded.count, at = now()
"""
RUNNING_ELSEWHERE: Final = """
SELECT running.name, sum(count)::int FROM {s}.running
JOIN {s}.members ON member = members.name AND heard > now() - make_interval(secs => %s)
WHERE running.name = ANY(%s) AND member <> %s AND at > now() - make_interval(secs => %s)
GROUP BY running.name
"""
COUNTED_SINCE: Final = "SELECT at, at + %s > extract(epoch FROM clock_timestamp()) FROM {s}.limits_since"
PUT_BOARD: Final = """
INSERT INTO {s}.boards (member, sealed, at) SELECT %s, %s, now() WHERE %s
ON CONFLICT (member) DO UPDATE SET sealed = excluded.sealed, at = excluded.at
"""
BOARDS: Final = """
SELECT member, sealed FROM {s}.boards
JOIN {s}.members ON member = name AND heard > now() - make_interval(secs => %s)
WHERE %s AND member <> %s AND at > now() - make_interval(secs => %s)
"""
