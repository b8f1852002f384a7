"""The zero-secret proof: a paused sandbox is searched, from the host, for all secrets that we hold for it.

May import: sandbox, request, secrets, telemetry, decision, platform.
"""
