"""A microVM that starts small, made larger from outside and smaller from inside: what was killed for its
memory runs, and what is no longer used goes back. Nobody gets more than the range, or than the host has."""

import asyncio
import json
import shlex
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coatcheck.client.control import ControlError
from coatcheck.client.sandbox import Sandbox
from tests.cli.transcript import coatcheck
from tests.sandboxes import Place, image_cache, place, sandbox_in
from tests.upstreams import UpstreamTls

pytestmark = [
    pytest.mark.needs_debian("qemu-system-x86_64", "bwrap"),
    pytest.mark.asyncio(loop_scope="module"),
]
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


async def refusal(sandbox: Sandbox, mib: int) -> ControlError | None:
    try:
        await sandbox.scale(memory_mib=mib)
    except ControlError as error:
        return error
    return None


async def counts_for(sandbox: Sandbox, mib: int) -> None:
    deadline = time.monotonic() + SECONDS
    while (await sandbox.refresh())["memory_mib"] != mib:
        assert time.monotonic() < deadline, sandbox.shown
        await asyncio.sleep(0.1)


def resized(where: Place, sandbox: Sandbox) -> list[str]:
    records = [each for each in where.daemon.records() if each["type"] == "sandbox"]
    return [e["detail"] for e in records if e["sandbox"] == sandbox.id and e["change"] == "resized"]


async def test_it_grows_when_its_caller_says_so(where: Place, sandbox: Sandbox, tmp_path: Path) -> None:
    """What was killed for its memory a moment ago runs, in the same sandbox."""
    assert not await fits(sandbox, 300)
    words = ("sandbox", "scale", sandbox.id, "--memory", "640", "--cpus", "2")
    env = {"COATCHECK_CONTROL_SOCKET": str(where.socket)}
    said = await asyncio.to_thread(coatcheck, *words, cwd=tmp_path, env=env)
    assert said.out == f"{sandbox.id}: 640 MiB of memory, 2 CPUs\n", said
    deadline = time.monotonic() + SECONDS
    while not await fits(sandbox, 300):
        assert time.monotonic() < deadline  # its balloon is letting go
    assert resized(where, sandbox) == ["640 MiB, 2 CPUs: caller"]


async def test_what_is_in_use_is_not_taken(sandbox: Sandbox) -> None:
    """A program that holds it lives on."""
    script = "x = b'x' * (300 << 20); print(1, flush=True); input()"
    async with await sandbox.start(["python3", "-I", "-S", "-c", script]) as holding:
        async for _ in holding:
            break
        deadline = time.monotonic() + SECONDS
        while (refused := await refusal(sandbox, 320)) is None:  # its kernel says seldom what is in use
            assert time.monotonic() < deadline
            await sandbox.scale(memory_mib=640)
            await asyncio.sleep(0.5)
        assert refused.reason == "oom_floor" and "are in use" in str(refused)
        await holding.write(b"\n")
        assert (await holding.wait()).exit_code == 0


async def test_it_shrinks_when_it_says_so_itself(where: Place, sandbox: Sandbox) -> None:
    """What it gives up counts for it until its kernel has given it back; then its programs have no more."""
    deadline = time.monotonic() + SECONDS
    while True:
        about, small = await asks(sandbox, (f"{SERVICE}/v1/limits",), scale({"memory_mib": 272, "cpus": 1}))
        if small[0] == 200 or time.monotonic() > deadline:
            break
        assert small[1]["error"]["reason"] == "oom_floor"  # its kernel says seldom what is in use no more
        await asyncio.sleep(0.5)
    assert (about[0], about[1]["memory_mib"], about[1]["cpus"]) == (200, 640, 2)
    assert (about[1]["elastic"]["min_memory_mib"], about[1]["elastic"]["max_memory_mib"]) == (256, 768)
    assert small == (200, {"memory_mib": 272, "cpus": 1})
    await counts_for(sandbox, 272)
    assert resized(where, sandbox)[-1] == "272 MiB, 1 CPUs: inside"
    assert not await fits(sandbox, 300)


async def test_what_it_may_not_have_is_refused_inside(sandbox: Sandbox) -> None:
    """Above its ceiling, below its floor, what the host has promised; and what was passed on by somebody."""
    refused = await asks(
        sandbox,
        scale({"memory_mib": 2048}),
        scale({"memory_mib": 128}),
        scale({"memory_mib": 720}),
        scale({"memory": 512}),
        scale({"cpus": 2}, "-H", "X-Forwarded-For: 10.0.0.1"),
        scale({"cpus": 2}, "-H", "Host: localhost"),
        (f"{SERVICE}/v1/scale",),
    )
    assert [(status, said["error"]["reason"]) for status, said in refused] == [
        (400, "beyond_limit"),
        (400, "beyond_limit"),
        (503, "no_room"),
        (400, "malformed"),
        (403, "passed_on"),
        (400, "wrong_host"),
        (405, "method_not_allowed"),
    ]


async def test_it_grows_and_shrinks_by_itself_as_it_was_asked_to(where: Place, sandbox: Sandbox) -> None:
    """At other percents and times than the usual ones: at the first pressure, and two seconds after."""
    await sandbox.kill()  # its memory is the next one's
    rule = {"up_percent": 55, "down_percent": 45, "cooldown_seconds": 1.0, "down_after_seconds": 2.0}
    wanted: dict[str, Any] = {"backend": "microvm", "memory_mib": 256, "disk_mib": 32}
    async with sandbox_in(where, **wanted, max_memory_mib=512, autoscale=rule) as grows:
        assert grows.shown["elastic"]["autoscale"] == rule and grows.shown["one_size"] == ""
        script = "x = b'x' * (145 << 20); print(1, flush=True); input()"
        async with await grows.start(["python3", "-I", "-S", "-c", script]) as holding:
            async for _ in holding:
                break
            await counts_for(grows, 512)
            assert resized(where, grows)[0] == "512 MiB, 1 CPUs: autoscaler"
            await holding.write(b"\n")
            assert (await holding.wait()).exit_code == 0
        deadline = time.monotonic() + SECONDS
        while len(resized(where, grows)) == 1:
            assert time.monotonic() < deadline, grows.shown
            await asyncio.sleep(0.1)
        assert (await grows.refresh())["memory_mib"] < 512
        assert resized(where, grows)[1].endswith(": autoscaler")
