"""DNS for sandboxes: synthetic addresses only, nothing is forwarded.

May import: telemetry, decision.
"""
