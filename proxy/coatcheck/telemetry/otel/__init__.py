"""Traces and logs in OpenTelemetry's wire format.

May import: telemetry, telemetry/audit, settings, platform.
"""
