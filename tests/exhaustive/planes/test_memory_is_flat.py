"""I9: a body of 1 GiB to a slow receiver costs the daemon less than 32 MiB, on HTTP/1.1 and HTTP/2."""

from pathlib import Path

import pytest

from tests.bench.streaming import bench

LIMIT = 32
"""MiB."""


@pytest.mark.parametrize("direction", ["down", "up"])
@pytest.mark.parametrize("protocol", ["http/1.1", "h2"])
async def test_1_gib_to_a_slow_receiver_leaves_memory_flat(
    tmp_path: Path, protocol: str, direction: str
) -> None:
    """The receiver takes 10 MB/s for 4 s, then all that comes (`python -m tests.bench.streaming`: all the
    while). The sender is held back meanwhile, and the daemon's highest memory rises by < 32 MiB."""
    async with bench(tmp_path) as running:
        await running.move(protocol, direction, 20_000_000, 0)
        figures = await running.move(protocol, direction, 1 << 30, 4)
    assert figures.rise < LIMIT
    assert figures.ahead < 40, "the sender was not held back"
