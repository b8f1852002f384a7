"""What all peers share: one process, hosts and secrets of the policy `vendor`, placeholders as handles."""

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.corpus.proxies import Inside, secrets
from tests.corpus.schema import Run

HOSTS: Final = {
    "api.vendor.example": "vendor",
    "other.vendor.example": None,
    "hooks.vendor.example": None,
    "plain.vendor.example": None,
    "second.example": "second",
}
"""Host -> the credential that may go there; as in policies/vendor.yaml."""
PORT: Final = 3128
START_SECONDS: Final = 60.0
OURS_ALONE: Final = frozenset({"archive", "control", "dns", "guest", "policy", "reach", "redirected"})
"""Kinds of steps that need more of a proxy than an address."""


class Peer:
    """A proxy that is told nothing of sessions: everybody holds the same placeholders."""

    def __init__(self, name: str, ca: Path) -> None:
        self.name = name
        self.secrets: Mapping[str, str] = secrets()
        self._inside = Inside(
            session="ses_0000000000000000",
            address=("127.0.0.1", PORT),
            ca=ca,
            handles={each: placeholder(each) for each in self.secrets},
            foreign={each: f"{placeholder(each)[:-8]}-foreign" for each in self.secrets},
        )

    async def open(self, policy: str, wanted: Mapping[str, Any]) -> Inside:
        return self._inside

    def mark(self) -> None:
        pass

    def records(self) -> list[dict[str, Any]]:
        return []


def placeholder(credential: str) -> str:
    """Three segments, as handles have, so that cases which cut or change one can."""
    return f"cch_placeholder.{credential}-0123456789abcdef.0123456789abcdef"


def has_part(run: Run) -> bool:
    """Whether a case asks a peer for nothing but what every proxy of this kind does."""
    case = run.case
    plain = run.mode == "explicit" and case.policy == "vendor" and case.peers == "same"
    kinds = {next(iter(step)) for step in case.steps}
    return plain and not (case.session or case.settings or case.bounds or kinds & OURS_ALONE)


@asynccontextmanager
async def running(command: Sequence[str], log: Path, **options: Any) -> AsyncIterator[None]:
    """The process, once its port is open, until the end of the block. RuntimeError with its last words."""
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, **options)
    try:
        until = time.monotonic() + START_SECONDS
        while not await _listens():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{command[0]} did not start: {log.read_text(errors='replace')[-2000:]}")
            await asyncio.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, 20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _listens() -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", PORT)
    except OSError:
        return False
    writer.close()
    return True
