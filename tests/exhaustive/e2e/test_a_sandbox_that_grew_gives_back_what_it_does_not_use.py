"""A microVM that grew, made smaller from inside or by autoscaling: unused memory goes back to the host."""

import asyncio
import time
from typing import Any

import pytest

from coatcheck.client.control import ControlError
from coatcheck.client.sandbox import Sandbox
from tests.sandboxes import Place, sandbox_in
from tests.system.e2e.growing import SECONDS, asks, fits, resized, sandbox, scale, where

__all__ = ["sandbox", "where"]

pytestmark = [
    pytest.mark.needs_debian("qemu-system-x86_64", "bwrap"),
    pytest.mark.asyncio(loop_scope="module"),
]
SERVICE, TOKEN = "http://169.254.169.254", "X-aws-ec2-metadata-token"


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


async def recorded(where: Place, sandbox: Sandbox, wanted: str) -> None:
    """The daemon records a size right after it begins to count for it."""
    deadline = time.monotonic() + SECONDS
    while resized(where, sandbox)[-1:] != [wanted]:
        assert time.monotonic() < deadline, resized(where, sandbox)
        await asyncio.sleep(0.02)


async def grow(sandbox: Sandbox) -> None:
    await sandbox.scale(memory_mib=640, cpus=2)
    deadline = time.monotonic() + SECONDS
    while not await fits(sandbox, 300):
        assert time.monotonic() < deadline  # its balloon is letting go


async def test_what_is_in_use_is_not_taken(sandbox: Sandbox) -> None:
    """A program that holds it lives on."""
    await grow(sandbox)
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
    await grow(sandbox)
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
    await recorded(where, sandbox, "272 MiB, 1 CPUs: inside")
    assert not await fits(sandbox, 300)


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
            await recorded(where, grows, "512 MiB, 1 CPUs: autoscaler")
            await holding.write(b"\n")
            assert (await holding.wait()).exit_code == 0
        deadline = time.monotonic() + SECONDS
        while len(resized(where, grows)) == 1:
            assert time.monotonic() < deadline, grows.shown
            await asyncio.sleep(0.1)
        assert (await grows.refresh())["memory_mib"] < 512
        assert resized(where, grows)[1].endswith(": autoscaler")
