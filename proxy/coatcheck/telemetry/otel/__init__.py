"""Traces and logs in OpenTelemetry's wire format."""
