"""A microVM that may grow, and programs in it that take memory."""

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest_asyncio

from coatcheck.client.sandbox import Sandbox
from tests.sandboxes import Place, image_cache, place, sandbox_in
from tests.upstreams import UpstreamTls

SECONDS = 120.0
"""For one step on a machine that many share, without KVM."""
SERVICE, TOKEN = "http://169.254.169.254", "X-aws-ec2-metadata-token"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def where(all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[Place]:
    settings: dict[str, Any] = {"cache_dir": image_cache(), "sandbox_total_memory": 700}
    async with place(all_output, upstream_tls, **settings) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(where: Place) -> AsyncIterator[Sandbox]:
    wanted: dict[str, Any] = {"backend": "microvm", "memory_mib": 256, "disk_mib": 128}
    async with sandbox_in(where, **wanted, max_memory_mib=768, max_cpus=2) as made:
        yield made


async def asks(sandbox: Sandbox, *requests: Sequence[str]) -> list[tuple[int, Any]]:
    """Status and answer of each of curl's `requests` to the metadata service, made inside."""
    lines = [f"T=$(curl -sX PUT -H '{TOKEN}-ttl-seconds: 60' {SERVICE}/latest/api/token)"]
    curl = f"curl -sw '\\n%{{http_code}}\\n' -H \"{TOKEN}: $T\""
    lines += [f"{curl} {shlex.join(words)}" for words in requests]
    async with asyncio.timeout(SECONDS):
        ran = await sandbox.run(["sh", "-ec", "\n".join(lines)])
    said = ran.stdout.decode().splitlines()
    return [(int(status), json.loads(body)) for body, status in zip(said[::2], said[1::2], strict=True)]


def scale(body: object, *words: str) -> Sequence[str]:
    return (f"{SERVICE}/v1/scale", "-d", json.dumps(body), *words)


async def fits(sandbox: Sandbox, mib: int) -> bool:
    """Whether a command can have so much memory; it is killed if not."""
    async with asyncio.timeout(SECONDS):
        ran = await sandbox.run(
            ["python3", "-I", "-S", "-c", f"x = [b'x' * (1 << 20) for _ in range({mib})]"]
        )
    assert ran.exit_code == 0 or ran.ended.limit == "memory"
    return ran.exit_code == 0


def resized(where: Place, sandbox: Sandbox) -> list[str]:
    records = [each for each in where.daemon.records() if each["type"] == "sandbox"]
    return [e["detail"] for e in records if e["sandbox"] == sandbox.id and e["change"] == "resized"]
