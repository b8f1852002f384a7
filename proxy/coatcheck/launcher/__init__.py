"""Sandboxes: computers whose only way out is Coatcheck. Speaks to the daemon only through the control API.

May import: durable, images, certificates, telemetry, client, settings, platform, decision.
"""
