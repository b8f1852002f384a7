"""The control API's operations, one file a resource.

May import: control, inspection, launcher, durable, request, policy, state, certificates, telemetry, decision.
"""
