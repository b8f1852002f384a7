"""What outlives one boot of a sandbox: snapshots, sleep, forks, restores, the warm pool, sizing.

May import: launcher, durable/snapshots, state, certificates, telemetry, client, settings, platform, decision.
"""
