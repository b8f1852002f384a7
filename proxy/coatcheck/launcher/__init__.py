"""One sandbox: boot, exec, files, ports, limits, lease, end. Speaks to its daemon through the control API.

May import: certificates, telemetry, client, settings, platform, decision.
"""
