"""An agent in a microVM, and clones of it, each with a task."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest_asyncio

from coatcheck.client.control import ControlError
from coatcheck.client.sandbox import Process, Sandbox, SandboxClient
from tests.sandboxes import WANTED, Place, image_cache, place
from tests.upstreams import UpstreamTls

HOME = "/home/agent"
SECONDS = 120.0
AGENT = """
import json, os, time, urllib.request
key = os.environ["OPENAI_API_KEY"]
done = ""
print("ready", flush=True)
while True:
    try:
        task = open("task").read()
    except OSError:
        task = ""
    if task == done:
        time.sleep(0.2)
        continue
    first = os.urandom(16).hex() + " " + open("/proc/sys/kernel/random/uuid").read().strip()
    done = task
    body = {"model": "m", "messages": [{"role": "user", "content": task}]}
    asked = urllib.request.Request(
        "https://api.openai.com/v1/chat/completions", json.dumps(body).encode(),
        {"Authorization": "Bearer " + key, "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            said = [answer.status, ""]
    except urllib.error.HTTPError as error:
        said = [error.code, error.headers.get("Coatcheck-Reason")]
    with open("done.new", "w") as file:
        json.dump({"task": task, "said": said, "first": first, "pid": os.getpid()}, file)
    os.rename("done.new", "done-" + task)
"""
"""A loop as an agent's: it holds its key in memory, waits for a task, asks the model, writes what it got."""


@dataclass
class Family:
    """One parent with a running agent, and three clones of it."""

    where: Place
    client: SandboxClient
    parent: Sandbox
    agent: Process
    clones: Sequence[Sandbox]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def family(all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[Family]:
    image_cache()
    async with place(all_output, upstream_tls) as where, where.client() as client:
        wanted: dict[str, Any] = {**WANTED, "backend": "microvm", "memory_mib": 192, "disk_mib": 64}
        async with await client.create(**wanted) as parent:
            await parent.write_file(f"{HOME}/agent.py", AGENT.encode())
            async with await parent.start(["python3", f"{HOME}/agent.py"], cwd=HOME) as agent:
                async for output in agent:
                    assert b"ready" in output.data
                    break
                clones = await client.fork(parent.id, 3)
                yield Family(where, client, parent, agent, clones)
                for clone in clones:
                    await clone.kill()


async def done(sandbox: Sandbox, task: str) -> dict[str, Any]:
    """What the agent inside made of a task."""
    await sandbox.write_file(f"{HOME}/task", task.encode())
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return dict(json.loads(await content(sandbox, f"{HOME}/done-{task}")))
            except ControlError as error:
                if error.reason != "file_not_found":
                    raise
                await asyncio.sleep(0.1)


async def content(sandbox: Sandbox, path: str) -> bytes:
    async with sandbox.read_file(path) as chunks:
        return b"".join([chunk async for chunk in chunks])


async def key_in(sandbox: Sandbox) -> str:
    """What a new command finds in its environment there."""
    return (await sandbox.run(["printenv", "OPENAI_API_KEY"])).stdout.decode().strip()


async def asked_with(sandbox: Sandbox, key: str) -> tuple[int, str]:
    """The status, and Coatcheck's reason, of a model call from `sandbox` with that key."""
    call = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code} %header{coatcheck-reason}"]
    call += ["-H", f"Authorization: Bearer {key}", "https://api.openai.com/v1/models"]
    status, _, reason = (await sandbox.run(call)).stdout.decode().partition(" ")
    return int(status), reason
