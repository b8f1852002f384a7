"""All sandboxes of a daemon, and what outlives one boot: snapshots, sleep, forks, the warm pool, sizing.

May import: durable/snapshots, launcher, containers, sandbox, images, state, certificates, telemetry, client,
settings, platform, decision.
"""
