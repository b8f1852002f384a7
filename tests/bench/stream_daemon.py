"""A daemon in a process of its own, for measuring its memory and how fast it lets go.

`python -m tests.bench.stream_daemon DIRECTORY UPSTREAM_CA ORIGIN_PORT SESSIONS`. Prints one JSON line with
its CA and sessions once it is ready; then obeys lines on standard input: `open` is answered with one more
session; `session ID`, `handle ID JTI`, `credential` and `everything` revoke, and are answered with `done` and
the moment (one monotonic clock for all processes) at which that is on disk and in force, which is when the
control API may answer at the earliest. Ends with its standard input.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

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
        loop = asyncio.get_running_loop()
        listed = [await _open(daemon) for _ in range(sessions)]
        print(json.dumps({"ca": str(daemon.trust.ca), "sessions": listed}), flush=True)
        await asyncio.to_thread(_obey, daemon, loop)


async def _open(daemon: TestDaemon) -> dict[str, Any]:
    made = await daemon.sandbox()
    (handle,) = made.minted
    return {"id": made.session.id, "port": made.address[1], "handle": handle.value, "jti": handle.jti}


def _obey(daemon: TestDaemon, loop: asyncio.AbstractEventLoop) -> None:
    for line in sys.stdin:
        match line.split():
            case ["open"]:
                opened = asyncio.run_coroutine_threadsafe(_open(daemon), loop).result()
                print(json.dumps(opened), flush=True)
                continue
            case ["session", session]:
                daemon.state.revoke(session, "bench")
            case ["handle", session, jti]:
                daemon.state.revoke_handle(session, jti, "bench")
            case ["credential"]:
                daemon.state.revoke_where(lambda session: True, "key", "bench")
            case ["everything"]:
                daemon.state.revoke_where(lambda session: True, None, "bench")
        print("done", time.monotonic(), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
