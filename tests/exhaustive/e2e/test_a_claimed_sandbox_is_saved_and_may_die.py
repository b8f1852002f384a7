"""A microVM of the warm pool is saved like any other once it is claimed. One that dies before leaves none."""

import asyncio
from pathlib import Path

import pytest

from tests.sandboxes import family, nothing_left, place, until
from tests.system.e2e.claimed import (
    POOL,
    SECONDS,
    Claimed,
    claimed,
    machines,
)
from tests.upstreams import UpstreamTls

__all__ = ["claimed"]

pytestmark = [
    pytest.mark.needs_debian("qemu-system-x86_64", "mke2fs"),
    pytest.mark.asyncio(loop_scope="module"),
]
CONTAINER = "http://169.254.170.2/v1/aws/credentials"


async def test_it_is_saved_and_restored_as_its_owners(claimed: Claimed) -> None:
    """A snapshot of it is signed, numbered and kept like that of one that was booted for its owner."""
    one = claimed.sandboxes[1]
    await one.write_file("/home/agent/kept", b"kept")
    token = (await one.run(["printenv", "AWS_CONTAINER_AUTHORIZATION_TOKEN"])).stdout.strip().decode()
    await one.snapshot("then")
    (shown,) = await one.snapshots()
    assert shown["generation"] == 2
    session = one.shown["sessions"]["agent"]
    await one.restore("then")
    assert one.shown["state"] == "running" and one.shown["sessions"]["agent"] != session
    assert (await one.run(["cat", "/home/agent/kept"])).stdout == b"kept"
    # What was in a process's environment before is so still, and its SDK asks with it.
    asks = f'curl -s -o /dev/null -w "%{{http_code}}" -H "Authorization: {token}" {CONTAINER}'
    assert (await one.run(["sh", "-c", asks])).stdout == b"200"
    assert (await one.run(["sh", "-c", asks.replace(token, "x" * 44)])).stdout == b"401"
    await one.remove_snapshot("then")  # handles are in it


async def test_one_whose_machine_is_killed_is_nobodys_loss(
    all_output: Path, upstream_tls: UpstreamTls
) -> None:
    """QEMU of one that boots for the pool: nothing of it is left, and no session knew of it."""
    async with place(all_output, upstream_tls, **{**POOL, "warm_pool": 1}) as where:
        pool = where.daemon.sandboxes.pool
        await asyncio.to_thread(until, pool.machines, SECONDS)
        one = pool.machines()[0]

        def killed() -> None:
            until(lambda: machines(one.process.pid), SECONDS)
            with nothing_left(one.directory) as processes:
                processes |= family(one.process.pid)
                machines(one.process.pid)[0].kill()

        await asyncio.to_thread(killed)
        assert where.control().list() == []
