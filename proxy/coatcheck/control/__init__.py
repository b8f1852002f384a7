"""The control API: aiohttp, `/v1/…`, one resource a file. Never reachable through the proxy.

May import: control/page, control/resources, inspection, durable, sandbox, request, policy, certificates,
secrets, state, telemetry, settings, decision, platform.
"""
