"""A daemon in a process of its own, and the one upstream that it may reach, which keeps what it was sent."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tests.planes.raw_origin import RawOrigin, running_origin
from tests.system.e2e.daemon_process import DaemonProcess, daemon_process
from tests.system.e2e.story import policy
from tests.upstreams import UpstreamTls

LEASE = 600
"""Seconds: no fault lasts so long, so what ends a session is never its lease."""


@asynccontextmanager
async def daemon_and_origin(
    directory: Path,
    secrets: Path,
    tls: UpstreamTls,
    key: str,
    *,
    environment: Mapping[str, str] | None = None,
    wrapper: tuple[str, ...] = (),
    **settings: str,
) -> AsyncIterator[tuple[DaemonProcess, RawOrigin]]:
    """Both run. The daemon keeps what it has in `directory`, and puts `key`, a file in `secrets`, in."""
    async with (
        running_origin(tls) as origin,
        daemon_process(
            directory,
            secrets,
            policy(secret="file:openai/key#value"),
            key=key,
            upstream_tls=tls,
            port=origin.port,
            environment=environment,
            wrapper=wrapper,
            session_lease=str(LEASE),
            **settings,
        ) as daemon,
    ):
        yield daemon, origin
