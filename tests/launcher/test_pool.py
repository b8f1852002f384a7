"""The warm pool of a real daemon: each of its machines is nobody's until it is one caller's, and no other's.

With the namespace backend, whose machines come up in a moment; what only a guest can show is in
tests/e2e/test_a_sandbox_of_the_warm_pool_is_nobodys_until_it_is_claimed.py.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coatcheck.launcher.pool import FROM_POOL, Pool
from coatcheck.launcher.unclaimed import State, Unclaimed
from tests.sandboxes import SECONDS, WANTED, Place, place, until
from tests.upstreams import UpstreamTls

pytestmark = [pytest.mark.needs_debian("bwrap"), pytest.mark.asyncio(loop_scope="module")]

SIZE = 2
POOL: dict[str, Any] = {"warm_pool": SIZE, "warm_pool_backend": "namespace"}


def pool_of(where: Place) -> Pool:
    return where.daemon.sandboxes.pool


def ready(where: Place) -> list[Unclaimed]:
    return [each for each in pool_of(where)._standing_by if each.look() is State.READY]


async def filled(where: Place, count: int = SIZE) -> list[Unclaimed]:
    await asyncio.to_thread(until, lambda: len(ready(where)) == count, 4 * SECONDS)
    return ready(where)


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


async def test_a_claimed_one_runs_when_it_is_answered_and_another_takes_its_place(where: Place) -> None:
    """It is whose it is from then on, under the id that it had, and nothing of it shows before."""
    before = {each.id for each in await filled(where)}
    control = where.control()
    assert not before & {each["id"] for each in control.sandboxes()}
    async with where.client() as client, await client.create(wait=False, **WANTED) as sandbox:
        assert sandbox.id in before
        assert sandbox.shown["state"] == "running"
        assert (await sandbox.run(["echo", "mine"])).stdout == b"mine\n"
        said = (await sandbox.run(["printenv", "OPENAI_API_KEY"])).stdout
        assert said.startswith(b"cch_")
        assert changes(where, sandbox.id) == [("created", FROM_POOL), ("running", "")]
        after = {each.id for each in await filled(where)}
        assert sandbox.id not in after
        assert 'coatcheck_warm_pool{state="ready"} 2.0' in where.daemon.metrics.render().decode()
