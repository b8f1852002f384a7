"""Two microVMs stand by, booted and nobody's; claimed, they are two callers' own, as if they had been booted.

Two boots serve all tests.
"""

import asyncio
import time

import pytest

from coatcheck.durable.pool import FROM_POOL
from tests.system.durable.warm import HANDLE
from tests.system.e2e.claimed import (
    Claimed,
    claimed,
    memory_of,
)

__all__ = ["claimed"]

pytestmark = [
    pytest.mark.needs_debian("qemu-system-x86_64", "mke2fs"),
    pytest.mark.asyncio(loop_scope="module"),
]
FIRST = "cat /etc/machine-id /proc/sys/kernel/random/uuid; hostname; head -c 16 /dev/urandom | od -An -tx1"


async def test_nothing_was_in_them_that_is_anybodys(claimed: Claimed) -> None:
    """All of their memory, before anybody had claimed them; the same search finds a handle in a command's."""
    assert claimed.found == [] and claimed.searched == 2 * 192 * 2**20
    one = claimed.sandboxes[0]
    process = await one.start(["sh", "-c", "echo up; while :; do sleep 1000; done"])
    assert await process.read() is not None
    supervisor = claimed.where.daemon.sandboxes.supervisor(one.id)
    assert supervisor is not None
    memory = await asyncio.to_thread(memory_of, supervisor.pid)
    assert HANDLE.search(memory)


async def test_who_is_refused_costs_none_of_them(claimed: Claimed) -> None:
    """The next caller has it, and no session was opened for the one that was refused."""
    assert claimed.refused == "too_many_sandboxes"
    created = [each["detail"] for each in claimed.where.daemon.records() if each.get("change") == "created"]
    assert created == [FROM_POOL] * 2
    assert [each.get("change") for each in claimed.where.daemon.records()].count("opened") == 2


async def test_both_ran_when_they_were_answered(claimed: Claimed) -> None:
    """Without a boot, whose answer comes while it starts. How long it takes says tests.bench.durable."""
    assert [each.shown["state"] for each in claimed.sandboxes] == ["running", "running"]
    told = [each for each in claimed.where.daemon.records() if each["type"] == "sandbox"]
    assert [each["detail"] for each in told if each["change"] == "created"] == [FROM_POOL, FROM_POOL]


async def test_each_is_somebody_of_its_own_with_the_time_of_now(claimed: Claimed) -> None:
    """Name, machine-id, the kernel's chance and a program's first: nothing is shared."""
    said = [(await each.run(["sh", "-c", FIRST])).stdout.splitlines() for each in claimed.sandboxes]
    for mine, others in zip(*said, strict=True):
        assert mine and mine != others
    for sandbox, lines in zip(claimed.sandboxes, said, strict=True):
        assert lines[2].decode() == sandbox.id.replace("_", "-")
        clock = float((await sandbox.run(["date", "+%s.%N"])).stdout)
        assert abs(clock - time.time()) < 60  # it stood still for longer than that on a busy machine, or less
        record = claimed.where.daemon.sandboxes.kept.record(sandbox.id)
        assert record is not None and record.generation == 2
        session = claimed.where.daemon.state.session(sandbox.shown["sessions"]["agent"])
        assert session.generation == 2  # nobody's machine is of the first


async def test_each_has_its_own_authority_and_no_other(claimed: Claimed) -> None:
    """Its handle is used from it, and is stolen goods in its neighbour."""
    one, two = claimed.sandboxes
    call = 'curl -s -o /dev/null -w "%{http_code}" -H "Authorization: Bearer $1" https://api.openai.com/v1/models'
    keys = [(await each.run(["printenv", "OPENAI_API_KEY"])).stdout.decode().strip() for each in (one, two)]
    assert keys[0] != keys[1]
    for sandbox, key, status in ((one, keys[0], b"200"), (two, keys[1], b"200"), (two, keys[0], b"401")):
        assert (await sandbox.run(["sh", "-c", call, "sh", key])).stdout == status
    used = [each for each in claimed.where.daemon.decisions() if each["outcome"] == "inject"]
    assert {each["session"] for each in used} == {each.shown["sessions"]["agent"] for each in (one, two)}
