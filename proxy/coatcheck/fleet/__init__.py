"""Sessions, revocations, limits and approvals that the daemons of one fleet share in Redis or Valkey.

May import: request, state, secrets, telemetry, settings, platform, decision.

Only this package knows Redis. A daemon without `COATCHECK_SHARED_STATE` imports nothing of it.
"""
