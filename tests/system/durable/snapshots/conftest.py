"""One guest is booted and saved once a file; from that snapshot the others come."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from coatcheck.durable.microvm import DurableMicroVM
from coatcheck.durable.snapshots.directory import Snapshot
from tests.launcher import tiny
from tests.system.durable.snapshots.worlds import ORIGIN, World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parent(world: World) -> AsyncIterator[tuple[DurableMicroVM, tiny.Guest]]:
    """It counts, remembers something in memory, and wrote something to its disk."""
    async with world.machine() as (machine, guest):
        assert await guest.line() == "hello"
        assert await guest.ask("put overlay on-disk-3141") == "written"
        assert await guest.ask("remember in-memory-2718") == "remembered"
        assert await guest.ask("count") == "counting"
        yield machine, guest


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def snapshot(world: World, parent: tuple[DurableMicroVM, tiny.Guest]) -> Path:
    machine, guest = parent
    while int(await guest.ask("counted")) < 50:
        pass
    place = world.snapshots / "first"
    saved = await machine.save(place)
    await machine.resume()
    await machine.finish(saved, ORIGIN)
    return place


@pytest.fixture(scope="module")
def template(world: World, snapshot: Path) -> Iterator[int]:
    descriptor = Snapshot.open(snapshot, world.key).template()
    yield descriptor
    os.close(descriptor)
