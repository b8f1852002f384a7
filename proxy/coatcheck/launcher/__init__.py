"""The minimal microVM launcher: boot, exec, files, ports, limits, lease. Its daemon is the control API.

May import: containers, sandbox, certificates, telemetry, client, settings, platform, decision.
"""
