"""The minimal microVM launcher: boot, exec, files, ports, limits, lease. Its daemon is the control API.

May import: containers, metadata, sandbox, certificates, telemetry, client, settings, decision, platform.
"""
