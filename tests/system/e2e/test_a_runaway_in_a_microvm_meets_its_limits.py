"""A fork bomb, a memory hog, a disk filler, an output flood: each meets its limit in one microVM and is told
which one, and how to have more. The sandbox lives on; in the end its time is over, which is said, too."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from coatcheck.client.sandbox import Sandbox
from coatcheck.client.sandbox.process import Finished
from tests.sandboxes import Place, image_cache, place, sandbox_in
from tests.upstreams import UpstreamTls

pytestmark = [
    pytest.mark.needs_debian("qemu-system-x86_64", "bwrap"),
    pytest.mark.asyncio(loop_scope="module"),
]
SECONDS = 120.0
"""For one of them on a machine that many share, without KVM."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def where(all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[Place]:
    async with place(all_output, upstream_tls, cache_dir=image_cache()) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(where: Place) -> AsyncIterator[Sandbox]:
    """Small: what goes wild in it should get there soon."""
    async with sandbox_in(
        where, backend="microvm", memory_mib=256, processes=40, disk_mib=128, output_mib=1
    ) as made:
        yield made


async def run(sandbox: Sandbox, *command: str) -> Finished:
    async with asyncio.timeout(SECONDS):
        return await sandbox.run(command)


async def lives(sandbox: Sandbox) -> None:
    """What one command does is no other's end."""
    assert (await run(sandbox, "echo", "alive")).stdout == b"alive\n"


async def test_a_fork_bomb(sandbox: Sandbox) -> None:
    """It has its processes in a moment, and no more."""
    bomb = "import os\nfor _ in range(2000):\n if not os.fork(): os.read(os.pipe()[0], 1)"
    ran = await run(sandbox, "python3", "-I", "-S", "-c", bomb)
    assert ran.exit_code != 0 and b"BlockingIOError" in ran.stderr
    assert ran.ended.limit == "processes"
    assert "40 processes" in ran.ended.message and "--processes" in ran.ended.hint
    await lives(sandbox)


async def test_a_memory_hog(sandbox: Sandbox) -> None:
    """Killed by the guest's kernel, for the commands' memory and not the agent's."""
    ran = await run(sandbox, "python3", "-I", "-S", "-c", "x = [bytearray(1 << 20) for _ in range(2000)]")
    assert ran.ended.limit == "memory" and ran.exit_code == 137
    assert "MiB" in ran.ended.message and "--memory" in ran.ended.hint
    await lives(sandbox)


async def test_a_disk_filler(sandbox: Sandbox) -> None:
    """It is told by the system call, as everywhere; the host keeps its disk."""
    ran = await run(sandbox, "dd", "if=/dev/zero", "of=big", "bs=1M", "count=1024")
    assert ran.exit_code != 0 and b"No space left on device" in ran.stderr
    assert ran.ended.limit == "disk"
    assert "128 MiB" in ran.ended.message and "--disk" in ran.ended.hint
    assert (await run(sandbox, "rm", "big")).exit_code == 0
    await lives(sandbox)


async def test_an_output_flood(sandbox: Sandbox) -> None:
    """A command's client often keeps all of it in memory."""
    ran = await run(sandbox, "head", "-c", "100M", "/dev/zero")
    assert len(ran.stdout) <= 1 << 20
    assert ran.ended.limit == "output"
    assert "1 MiB" in ran.ended.message and "--output" in ran.ended.hint
    await lives(sandbox)


async def test_its_time(where: Place) -> None:
    """It ends, booted or not; why is said to callers, and is in the audit log."""
    async with sandbox_in(where, backend="microvm", timeout_seconds=2, wait=False) as made:
        while (about := await made.refresh())["state"] != "ended":
            await asyncio.sleep(0.1)
    assert about["ending"] == "time_limit"
    assert "2 s" in about["detail"] and "--timeout" in about["detail"]
    assert where.ended(made.id)["ending"] == "time_limit"
