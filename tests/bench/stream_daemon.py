"""A daemon in a process of its own, for measuring its memory and how fast it lets go.

`python -m tests.bench.stream_daemon DIRECTORY UPSTREAM_CA ORIGIN_PORT SESSIONS`. Prints one JSON line with
its process id, CA and sessions once it is ready; then obeys lines on standard input: `revoke SESSION`
is answered with `done` and the monotonic time (one clock for
all processes) when the revocation is on disk and in force. Ends with its standard input.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from tests.daemon import TestDaemon, running_daemon

POLICY = """
version: 1
owner: tests
credentials:
  key:
    secret: memory:secret/bench#key
    hosts: [api.openai.com, api.github.com]
    inject: {header: Authorization, value: "Bearer {secret}"}
    env: API_KEY
rules:
  - name: http1
    hosts: [api.openai.com]
    methods: [GET, PUT]
    credentials: [key]
  - name: http2
    hosts: [api.github.com]
    methods: [GET, PUT]
    credentials: [key]
    http2: true
"""
SECRET = "bench-secret-0123456789abcdef"


async def serve(directory: Path, upstream_ca: Path, port: int, sessions: int) -> None:
    async with running_daemon(
        directory,
        POLICY,
        {"memory:secret/bench#key": SECRET},
        upstream_ca=upstream_ca,
        connect_to={f"{host}:443": port for host in ("api.openai.com", "api.github.com")},
        session_lease=600.0,
    ) as daemon:
        made = [await daemon.sandbox(subject=f"agent-{number}") for number in range(sessions)]
        listed = [{"id": s.session.id, "port": s.address[1], "handle": s.handles["key"]} for s in made]
        print(json.dumps({"ca": str(daemon.trust.ca), "sessions": listed}), flush=True)
        await asyncio.to_thread(_obey, daemon)


def _obey(daemon: TestDaemon) -> None:
    for line in sys.stdin:
        daemon.state.revoke(line.split()[1], "bench")
        print("done", time.monotonic(), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
