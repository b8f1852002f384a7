"""Two microVMs stand by, booted and nobody's; claimed, they are two callers' own, as if they had been booted.

Two boots serve all tests.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from coatcheck.client.control import ControlError
from coatcheck.client.sandbox import Sandbox
from coatcheck.durable.pool import FROM_POOL
from coatcheck.durable.warm_machine import WarmMachine, WarmState
from coatcheck.launcher.descriptors import MEMORY
from tests.known_secrets import needles
from tests.sandboxes import POLICY, WANTED, Place, family, image_cache, nothing_left, place, until
from tests.system.durable.test_pool import HANDLE
from tests.upstreams import UpstreamTls

pytestmark = [
    pytest.mark.needs_debian("qemu-system-x86_64", "mke2fs"),
    pytest.mark.asyncio(loop_scope="module"),
]
SECONDS = 240.0
POOL: dict[str, Any] = {
    "warm_pool": 2,
    "warm_pool_backend": "microvm",
    "warm_pool_memory": 192,
    "warm_pool_disk": 32,
}
MINE: dict[str, Any] = {**WANTED, "backend": "microvm", "memory_mib": 192, "disk_mib": 32}
WITH_AWS = POLICY.replace(
    "credentials:\n",
    """credentials:
  aws:
    secret: memory:secret/aws#keys
    hosts: [sqs.eu-central-1.amazonaws.com]
    inject: {sigv4: {services: [sqs]}}
""",
    1,
).replace(
    "rules:\n",
    """rules:
  - {name: aws, hosts: [sqs.eu-central-1.amazonaws.com], methods: [POST], credentials: [aws]}
""",
)
CONTAINER = "http://169.254.170.2/v1/aws/credentials"
FIRST = "cat /etc/machine-id /proc/sys/kernel/random/uuid; hostname; head -c 16 /dev/urandom | od -An -tx1"


@dataclass
class Claimed:
    """What stood by, and what became of it."""

    where: Place
    found: Sequence[bytes]
    """Of what was searched for, in what was nobody's."""
    searched: int
    refused: str
    """Why somebody else could have none of them, while no more may be kept."""
    sandboxes: Sequence[Sandbox]


def machines(supervisor: int) -> list[psutil.Process]:
    """Its QEMU, once that has a guest's memory; one that is only asked for its version has none."""
    found = []
    for each in psutil.Process(supervisor).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if each.name().startswith("qemu") and _memory(each).exists():
                found.append(each)
    return found


def _memory(qemu: psutil.Process) -> Path:
    return Path(f"/proc/{qemu.pid}/fd/{MEMORY}")


def memory_of(supervisor: int) -> bytes:
    """Its guest's, all of it."""
    (qemu,) = machines(supervisor)
    return _memory(qemu).read_bytes()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def claimed(all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[Claimed]:
    image_cache()
    async with place(all_output, upstream_tls, WITH_AWS, **POOL) as where, where.client() as client:
        pool = where.daemon.sandboxes.pool

        def ready() -> list[WarmMachine]:
            return [each for each in list(pool._standing_by) if each.poll() is WarmState.READY]

        await asyncio.to_thread(until, lambda: len(ready()) == 2, SECONDS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pool, "_is_room", lambda more: False)  # no third boot
            assert where.control().sandboxes() == []
            memories = [await asyncio.to_thread(memory_of, each.process.pid) for each in ready()]
            wanted = [needle for needle, name in needles().items() if "the origin's" in name]
            found = [needle for needle in wanted for memory in memories if needle in memory]
            found += [hit for memory in memories for hit in HANDLE.findall(memory)]
            sandboxes = [await client.create(wait=False, **MINE)]
            with patch.context() as full:
                full.setattr(where.daemon.sandboxes.kept, "_most", 1)
                with pytest.raises(ControlError) as refused:
                    await client.create(wait=False, **MINE)
            sandboxes += [await client.create(wait=False, **MINE)]
            yield Claimed(where, found, sum(map(len, memories)), refused.value.reason, sandboxes)


async def test_nothing_was_in_them_that_is_anybodys(claimed: Claimed) -> None:
    """All of their memory, before anybody had claimed them; the same search finds a handle in a command's."""
    assert claimed.found == [] and claimed.searched == 2 * 192 * 2**20
    one = claimed.sandboxes[0]
    await one.start(["sh", "-c", "while :; do sleep 1000; done"])
    supervisor = claimed.where.daemon.sandboxes.supervisor(one.id)
    assert supervisor is not None
    memory = await asyncio.to_thread(memory_of, supervisor.pid)
    assert HANDLE.search(memory)


async def test_who_is_refused_costs_none_of_them(claimed: Claimed) -> None:
    """Whoever comes next has it, and no session was opened for whoever could have nothing."""
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
        await asyncio.to_thread(until, lambda: pool._standing_by, SECONDS)
        one = pool._standing_by[0]

        def killed() -> None:
            until(lambda: machines(one.process.pid), SECONDS)
            with nothing_left(one.directory) as processes:
                processes |= family(one.process.pid)
                machines(one.process.pid)[0].kill()

        await asyncio.to_thread(killed)
        assert where.control().list() == []
