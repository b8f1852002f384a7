"""Sandboxes with a program that counts, so that its lives can be told apart."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest_asyncio

from coatcheck.client.sandbox import Sandbox, SandboxClient
from tests.sandboxes import WANTED, Place, image_cache, place
from tests.upstreams import UpstreamTls

SECONDS = 120.0
COUNTER = "cd /home/agent; n=0; while n=$((n+1)); do echo $$ $n > new; mv new n; sleep 0.05; done"
"""A program that shows how far it is, and that it is the same one."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def where(all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[Place]:
    image_cache()
    async with place(all_output, upstream_tls) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(where: Place) -> AsyncIterator[SandboxClient]:
    async with where.client() as made:
        yield made


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not true():
            await asyncio.sleep(0.05)


async def made(client: SandboxClient, lifecycle: str, **different: Any) -> Sandbox:
    wanted = {**WANTED, "backend": "microvm", "memory_mib": 160, "disk_mib": 32, "lifecycle": lifecycle}
    return await client.create(**wanted, **different)


def state(where: Place, sandbox: Sandbox) -> str:
    now = where.daemon.sandboxes.settle(sandbox.id)
    return now.state if now is not None else "gone"


def changes(where: Place, sandbox: Sandbox) -> list[str]:
    told = [each for each in where.daemon.records() if each["type"] == "sandbox"]
    return [each["change"] for each in told if each["sandbox"] == sandbox.id]


async def counted(sandbox: Sandbox) -> tuple[str, int]:
    """Its program's id, and how far it is."""
    async with sandbox.read_file("/home/agent/n") as chunks:
        said = b"".join([chunk async for chunk in chunks]).decode().split()
    return said[0], int(said[1])


async def counting(sandbox: Sandbox) -> tuple[str, int]:
    started = await sandbox.run(
        ["sh", "-c", f"({COUNTER}) </dev/null >/dev/null 2>&1 & until [ -s n ]; do :; done"],
        cwd="/home/agent",
    )
    assert started.exit_code == 0
    return await counted(sandbox)
