"""The minimal microVM launcher: boot, exec, files, ports, limits, lease. Its daemon is the control API.

May import: containers, metadata, sandbox, certificates, telemetry, client, settings, decision, platform.

To read it, follow a sandbox: `__main__` and `supervisor` (its life), `boot` and `preparing` (until it can be
used), `microvm`, `emulator` and `qemu` (the machine), `channel` and what that is made of, from bytes to
streams: `frames`, `mux`, `outbox`, `stream`. Then what callers get: `api`, `commands`, `files`, `ports`; and
what the guest gets: `network`, `egress`, `trust`. In `guest/`, the other end: `main.c`, `mux.c`
and `stream.c` first.
"""
