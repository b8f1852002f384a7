"""All sandboxes of a daemon, and what outlives one boot: snapshots, sleep, forks, the warm pool, sizing.

May import: durable/snapshots, launcher, containers, metadata, sandbox, images, certificates, state,
telemetry, client, settings, decision, platform.
"""
