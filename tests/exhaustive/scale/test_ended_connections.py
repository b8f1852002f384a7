"""What connections leave behind when their clients go away in the middle."""

import gc
import weakref

import pytest

from coatcheck import daemon
from tests.exhaustive.scale.conftest import House
from tests.system.e2e.story import until

CONNECTIONS = 6


async def test_what_they_leave_in_cycles_does_not_wait_for_the_collectors_mood(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a megabyte each, and by itself the collector comes to it after thousands: here it is switched
    off, and they are gone all the same."""
    monkeypatch.setattr(daemon, "GIVE_BACK_ENDED", 1)
    plane = house.daemon.plane
    assert plane is not None
    member = await house.member(1)
    left = []
    gc.disable()
    try:
        for _ in range(CONNECTIONS):
            reader, writer = await member.open(house.context)
            writer.write(member.request("/large"))
            await reader.readexactly(65_536)
            left += [weakref.ref(link) for link in plane.connections]
            writer.transport.abort()

        async def still_there() -> int:
            await member.ask(house.context)  # others end meanwhile
            return sum(link() is not None for link in left)

        assert len(left) >= CONNECTIONS
        await until(still_there, lambda count: count == 0, patience=60)
    finally:
        gc.enable()
