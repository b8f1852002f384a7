"""One request from its head to its last byte: decided, recorded, its secrets injected and redacted.

May import: policy, state, secrets, telemetry, decision.
"""
