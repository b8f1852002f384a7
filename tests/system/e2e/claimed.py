"""Two microVMs of a warm pool, claimed by two callers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from coatcheck.client.control import ControlError
from coatcheck.client.sandbox import Sandbox
from coatcheck.durable.warm_machine import WarmMachine
from coatcheck.launcher.qemu import MEMORY
from tests.known_secrets import needles
from tests.sandboxes import POLICY, WANTED, Place, image_cache, place, until
from tests.system.durable.warm import HANDLE
from tests.upstreams import UpstreamTls

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
            return list(pool.machines(ready=True))

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
