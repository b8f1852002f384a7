"""Telling what happened: one frozen value an event (`events`), and sinks that are functions of it.

May import: telemetry/audit, telemetry/metrics, telemetry/otel, platform, decision.
"""
