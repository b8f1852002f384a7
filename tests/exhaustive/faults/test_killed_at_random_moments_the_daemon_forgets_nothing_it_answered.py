"""`kill -9` under load, while it starts, while it drains: records, sessions, revocations are all there."""

import random
from pathlib import Path

from tests.exhaustive.faults.daemon_and_origin import daemon_and_origin
from tests.exhaustive.faults.kill_rounds import Kills
from tests.upstreams import UpstreamTls


async def test_five_kills(
    place: Path, tmp_path: Path, upstream_tls: UpstreamTls, real_keys: dict[str, str]
) -> None:
    """`make hard` does the same 200 times (tests/hard/kills.py)."""
    key = real_keys["openai"]
    async with daemon_and_origin(place, tmp_path / "secrets", upstream_tls, key) as (daemon, origin):
        kills = Kills(daemon, origin, key, random.Random())
        for kind in ("load", "starting", "load", "draining", "load"):
            await kills.round(kind)
        assert kills.totals.kills.total() == 5
        assert kills.totals.forwarded >= 5 and kills.totals.sure >= 5
