"""The audit log: records, files, hash chain, checkpoints, verification, and OCSF export.

May import: telemetry, platform, decision.
"""
