"""Signed policy bundles and the keys that they are checked with.

May import: policy/file, injectors, telemetry, platform, decision.
"""
