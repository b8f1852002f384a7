"""A hundred clients that take their time; `python -m tests.bench.slow_clients` does it with a thousand."""

import pytest

from coatcheck.planes.mitm import deadlines
from tests.bench.slow_clients import KINDS, hold, honest
from tests.exhaustive.scale.conftest import House
from tests.system.e2e.story import until

EACH = 20
ENDLESS = 3
"""Kinds that never end their head or their handshake: they are sent away."""


async def test_slow_clients_harm_nobody_and_those_that_never_begin_are_sent_away(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they hold, another sandbox is served on old and new connections; the slow ones that have asked
    for something get it when they like."""
    monkeypatch.setattr(deadlines, "HEAD_SECONDS", 2.0)
    plane = house.daemon.plane
    assert plane is not None
    members = [await house.member(number) for number in range(10)]
    good = await house.member(200)
    held = await hold(members, house.context, EACH)

    async def connections() -> int:
        return len(plane.connections)

    try:
        assert len(await honest(good, house.context, 50)) == 50
        assert await good.ask(house.context) == "200"
        await until(connections, lambda count: count <= EACH * (len(KINDS) - ENDLESS))
        assert await good.ask(house.context) == "200"
        reader, writer = held[-1]
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        assert len(await reader.readexactly(8 << 20)) == 8 << 20
    finally:
        for _, writer in held:
            writer.transport.abort()
    await until(connections, lambda count: count == 0)
