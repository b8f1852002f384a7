"""The compatibility mode: an addon for a stock `mitmdump -s`, which cannot hold every invariant.

May import: planes, planes/mitm, planes/origins, planes/upstream, request, policy, state, secrets,
certificates, telemetry, settings, platform, decision.
"""
