"""The control API: aiohttp, `/v1/…`, one resource a file. Never reachable through the proxy.

May import: control/page, control/resources, inspection, durable, launcher, request, policy, state,
certificates, telemetry, settings, platform, decision.
"""
