"""A daemon with a warm pool of two, in the namespace backend."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from coatcheck.client.sandbox import SandboxClient
from coatcheck.durable.pool import Pool
from coatcheck.durable.warm_machine import WarmMachine
from tests.sandboxes import SECONDS, Place, nothing_left, place, until
from tests.upstreams import UpstreamTls

SIZE = 2
POOL: dict[str, Any] = {"warm_pool": SIZE, "warm_pool_backend": "namespace"}


HANDLE = re.compile(rb"cch_eyJ[\w-]{20}")
"""How each of them begins. The first seven are a word of our own code."""


def pool_of(where: Place) -> Pool:
    return where.daemon.sandboxes.pool


def ready(where: Place) -> list[WarmMachine]:
    return list(pool_of(where).machines(ready=True))


async def filled(where: Place, count: int = SIZE) -> list[WarmMachine]:
    """The machines of the pool, when there are `count` and nothing is left of those before them."""

    def settled() -> bool:
        found = ready(where)
        held = sum(each.shape.resources.memory_mib for each in found)
        return len(found) == count and pool_of(where).memory_mib == held

    await asyncio.to_thread(until, settled, 4 * SECONDS)
    return ready(where)


def gone(directory: Path, processes: set[int]) -> None:
    """Waits in a thread of its own: it is the daemon's loop, the test's own, that clears away."""
    with nothing_left(directory) as theirs:
        theirs |= processes


def changes(where: Place, sandbox: str) -> list[tuple[str, str]]:
    return [
        (each["change"], each["detail"])
        for each in where.daemon.records()
        if each["type"] == "sandbox" and each["sandbox"] == sandbox
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def where(all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[Place]:
    async with place(all_output, upstream_tls, **POOL) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(where: Place) -> AsyncIterator[SandboxClient]:
    async with where.client() as made:
        yield made
