"""Sessions, revocations, limits and approvals that the daemons of one fleet share in PostgreSQL.

May import: request, state, secrets, telemetry, settings, platform, decision.

Only `postgres` knows psycopg. A daemon without `COATCHECK_SHARED_STATE` imports nothing of it.
"""
