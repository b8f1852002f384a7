"""The wall clock is set back and forward, the machine sleeps, certificates run out: a real daemon, real curl."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import debian
from tests.e2e.daemon_process import DaemonProcess, OpenedSession, daemon_process
from tests.e2e.story import policy, until
from tests.faults.clocks import Clocks, clocks
from tests.known_secrets import known_secret
from tests.planes.raw_origin import RawOrigin, running_origin
from tests.upstreams import UpstreamTls

DAY = 86_400


@dataclass
class World:
    daemon: DaemonProcess
    clocks: Clocks
    origin: RawOrigin
    secret: Path

    async def ask(self, session: OpenedSession) -> tuple[str, str]:
        """The status that curl, whose clocks are the daemon's, got inside of the tunnel or for it; why not."""
        process = await asyncio.create_subprocess_exec(
            "curl", "--silent", "--output", "/dev/null", "--max-time", "60",
            "--write-out", "%{http_connect} %{http_code} %header{coatcheck-reason} %{exitcode}",
            "--unix-socket", session.url.removeprefix("unix://"),
            *("--proxytunnel", "--proxy", "http://localhost"), "--cacert", str(session.ca),
            "--header", f"Authorization: Bearer {session.handle}", "https://api.openai.com/v1/models",
            env=self.clocks.environment | {"PATH": "/usr/bin:/bin"},
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
        connect, code, *rest = out.decode().split()
        return (code if code != "000" else connect), " ".join(rest)
