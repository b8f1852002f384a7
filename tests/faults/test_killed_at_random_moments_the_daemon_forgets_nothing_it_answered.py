"""`kill -9` under load, while it starts, while it drains: records, sessions, revocations are all there."""

import random
from pathlib import Path

from tests.e2e.daemon_process import daemon_process
from tests.e2e.story import policy
from tests.faults.kill_rounds import Kills
from tests.planes.raw_origin import running_origin
from tests.upstreams import UpstreamTls


async def test_five_kills(
    place: Path, tmp_path: Path, upstream_tls: UpstreamTls, real_keys: dict[str, str]
) -> None:
    """`make hard` does the same 200 times (tests/hard/kills.py)."""
    async with (
        running_origin(upstream_tls) as origin,
        daemon_process(
            place,
            tmp_path / "secrets",
            policy(secret="file:openai/key#value"),
            key=real_keys["openai"],
            upstream_tls=upstream_tls,
            port=origin.port,
            session_lease="600",
        ) as daemon,
    ):
        kills = Kills(daemon, origin, real_keys["openai"], random.Random())
        for kind in ("load", "starting", "load", "draining", "load"):
            await kills.round(kind)
        assert kills.totals.kills.total() == 5
        assert kills.totals.forwarded >= 5 and kills.totals.sure >= 5
