"""The control API's operations, one file a resource.

May import: control, inspection, durable, launcher, request, policy, state, certificates, telemetry, decision.
"""
