"""Traces and logs in OpenTelemetry's wire format.

May import: telemetry, settings, platform.
"""
