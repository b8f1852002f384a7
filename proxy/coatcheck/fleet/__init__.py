"""Sessions, revocations, limits and approvals that the daemons of one fleet share in Redis or Valkey.

Only this package knows Redis. A daemon without `COATCHECK_SHARED_STATE` imports nothing of it.
"""
