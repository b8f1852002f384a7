"""The warm pool of a real daemon: each of its machines is nobody's until it is one caller's, and no other's.

With the namespace backend, whose machines come up in a moment; what only a guest can show is in
tests/system/e2e/test_a_sandbox_of_the_warm_pool_is_nobodys_until_it_is_claimed.py.
"""

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from coatcheck.client.control import ControlError
from coatcheck.client.sandbox import SandboxClient
from coatcheck.durable import admission
from coatcheck.durable.pool import EMPTY, FROM_POOL, OTHER_SHAPE
from coatcheck.durable.warm_machine import WarmMachine
from coatcheck.sandbox.resources import Size
from coatcheck.sandbox.sandbox import SandboxRefused
from tests.known_secrets import needles
from tests.sandboxes import WANTED, Place, family, nothing_left, until
from tests.system.durable.warm import HANDLE, SIZE, changes, client, filled, gone, pool_of, ready, where

__all__ = ["client", "where"]

pytestmark = [pytest.mark.needs_debian("bwrap", "runc"), pytest.mark.asyncio(loop_scope="module")]


def memory_of(pid: int) -> bytes:
    """All that a process has written, and could say."""
    found = []
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            begin, _, end = line.split()[0].partition("-")
            if line.split()[1].startswith("rw"):
                with contextlib.suppress(OSError, OverflowError):
                    memory.seek(int(begin, 16))
                    found.append(memory.read(int(end, 16) - int(begin, 16)))
    return b"".join(found)


async def test_a_claimed_one_runs_when_it_is_answered_and_another_takes_its_place(
    where: Place, client: SandboxClient
) -> None:
    """It is whose it is from then on, under the id that it had, and nothing of it shows before."""
    before = {each.id for each in await filled(where)}
    assert not before & {each["id"] for each in where.control().sandboxes()}
    async with await client.create(wait=False, **WANTED) as sandbox:
        assert sandbox.id in before
        assert sandbox.shown["state"] == "running"
        assert (await sandbox.run(["echo", "mine"])).stdout == b"mine\n"
        assert (await sandbox.run(["printenv", "OPENAI_API_KEY"])).stdout.startswith(b"cch_")
        assert changes(where, sandbox.id) == [("created", FROM_POOL), ("running", "")]
        assert sandbox.id not in {each.id for each in await filled(where)}
        assert 'coatcheck_warm_pool{state="ready"} 2.0' in where.daemon.metrics.render().decode()


async def test_nobody_gets_what_another_has(where: Place, client: SandboxClient) -> None:
    """More at once than there are: each machine is one caller's, and who comes too late gets a boot."""
    standing_by = {each.id for each in await filled(where)}
    made = await asyncio.gather(*(client.create(**WANTED) for _ in range(SIZE + 1)))
    assert len({each.id for each in made}) == SIZE + 1
    assert {each.id for each in made} > standing_by
    (late,) = (each for each in made if each.id not in standing_by)
    assert changes(where, late.id)[0] == ("created", EMPTY)
    for number, each in enumerate(made):
        assert (await each.run(["sh", "-c", f"echo {number}; hostname"])).stdout.split()[0] == b"%d" % number
    await asyncio.gather(*(each.kill() for each in made))


@pytest.mark.parametrize(
    "different",
    [{"memory_mib": 100}, {"identities": [{"name": "tool"}]}],
    ids=lambda different: next(iter(different)),
)
async def test_what_has_another_shape_boots(
    where: Place, client: SandboxClient, different: dict[str, Any]
) -> None:
    """What cannot be changed of a machine that has booted; the event says why it took longer."""
    await filled(where)
    async with await client.create(wait=False, **WANTED, **different) as sandbox:
        assert sandbox.shown["state"] == "starting"
        assert changes(where, sandbox.id)[0] == ("created", OTHER_SHAPE)


async def test_what_can_be_changed_is_the_owners(where: Place, client: SandboxClient) -> None:
    """Time, output and network are kept on the host: they are what its owner asked for."""
    await filled(where)
    wanted = {**WANTED, "timeout_seconds": 100, "output_mib": 1}
    async with await client.create(wait=False, **wanted) as sandbox:
        assert changes(where, sandbox.id)[0] == ("created", FROM_POOL)
        assert sandbox.shown["expires_at"] - sandbox.shown["created_at"] == pytest.approx(100)
        output = await sandbox.run(["head", "-c", "3000000", "/dev/zero"])
        assert len(output.stdout) < 1.1 * 2**20


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads a supervisor's memory, which hides it")
async def test_one_that_is_nobodys_holds_no_handle_and_no_secret(where: Place, client: SandboxClient) -> None:
    """Its supervisor's memory and its machine's, beside a daemon that serves others; once it is claimed the
    same search finds its owner's handles there."""
    async with await client.create(**WANTED) as neighbour:
        assert (await neighbour.run(["true"])).exit_code == 0
        one, _ = await filled(where)
        for pid in family(one.process.pid):
            held = await asyncio.to_thread(memory_of, pid)
            assert HANDLE.search(held) is None
            assert not any(needle in held for needle, name in needles().items() if "the origin's" in name)
        taken = {each.id: each for each in ready(where)}
        async with await client.create(wait=False, **WANTED) as sandbox:
            assert HANDLE.search(await asyncio.to_thread(memory_of, taken[sandbox.id].process.pid))


async def test_what_is_too_old_is_replaced(where: Place) -> None:
    """Nobody gets it once it is, also before it was replaced."""
    old, young = await filled(where)
    processes = family(old.process.pid)
    old.born -= where.daemon.settings.warm_pool_age
    await asyncio.to_thread(until, lambda: old.process.poll() is not None)
    await asyncio.to_thread(gone, old.directory, processes)
    assert young in await filled(where) and old not in ready(where)


async def test_what_another_image_or_setting_would_not_make_is_replaced(
    where: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image that was built again has another directory; here the limits are others."""
    before = await filled(where)
    (wanted,) = {each.shape for each in before}
    other = replace(wanted, resources=replace(wanted.resources, processes=100))
    monkeypatch.setattr("coatcheck.durable.pool.shape_of", lambda choice, limits: other)
    await asyncio.to_thread(until, lambda: {each.shape for each in ready(where)} == {other})
    monkeypatch.undo()
    await asyncio.to_thread(until, lambda: {each.shape for each in ready(where)} == {wanted})
    assert not {each.id for each in before} & {each.id for each in ready(where)}


async def test_one_that_is_killed_leaves_nothing_and_is_replaced(where: Place) -> None:
    """Its supervisor, or its machine; its neighbour stays."""
    for victim in ("supervisor", "machine"):
        one, other = await filled(where)

        def killed(one: WarmMachine = one, victim: str = victim) -> None:
            with nothing_left(one.directory) as processes:
                processes |= family(one.process.pid)
                if victim == "supervisor":
                    one.process.send_signal(signal.SIGKILL)
                else:
                    psutil.Process(one.process.pid).children()[0].kill()

        await asyncio.to_thread(killed)
        left = {each.id for each in await filled(where)}
        assert other.id in left and one.id not in left


async def test_it_is_not_filled_where_there_is_no_room(where: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory counts: what is promised to sandboxes is not given away for one that nobody asked for."""
    one, _ = await filled(where)
    asked: list[int] = []

    def memory() -> tuple[int, int]:
        asked.append(1)
        return 1024, 10_000  # three quarters of it are 768: one of them, and no other

    monkeypatch.setattr(admission, "memory", memory)
    one.end()
    seen = len(asked)
    await asyncio.to_thread(until, lambda: len(asked) > seen + 2)
    assert len(pool_of(where).machines()) == 1
    monkeypatch.undo()
    await filled(where)


async def test_it_gives_way_to_a_sandbox_that_wants_its_memory(
    where: Place, client: SandboxClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox that is refused for what the pool holds finds it free the next time, and for a while it stays
    so."""
    standing_by = await filled(where)
    pool = pool_of(where)
    monkeypatch.setattr(admission, "memory", lambda: (2048, 10_000))
    monkeypatch.setattr("coatcheck.durable.pool.GAVE_WAY_SECONDS", 3.0)
    async with await client.create(**WANTED, memory_mib=100) as sandbox:
        known = where.daemon.sandboxes.get(sandbox.id)
        assert known is not None
        refused = time.monotonic()
        with pytest.raises(SandboxRefused, match="no room"):
            pool.check_room([], known, Size(1000, 1))
        await asyncio.to_thread(until, lambda: not pool.memory_mib)
        assert all(each.process.poll() is not None for each in standing_by)
        pool.check_room([], known, Size(1000, 1))
    assert all(each.born > refused + 3.0 for each in await filled(where))


async def test_while_the_daemon_drains_nobody_claims_one(where: Place, client: SandboxClient) -> None:
    """A machine that boots would be refused as well."""
    before = await filled(where)
    where.daemon.exchange.draining = True
    try:
        with pytest.raises(ControlError) as refused:
            await client.create(**WANTED)
    finally:
        where.daemon.exchange.draining = False
    assert refused.value.reason == "draining"
    assert ready(where) == before
