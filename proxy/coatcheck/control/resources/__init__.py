"""The control API's operations, one file a resource.

May import: control, inspection, durable, sandbox, request, policy, certificates, state, telemetry, decision.
"""
