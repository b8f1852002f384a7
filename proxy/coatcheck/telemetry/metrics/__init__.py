"""Prometheus metrics.

May import: telemetry, telemetry/audit, decision.
"""
