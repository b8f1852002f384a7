"""A machine of the warm pool dies or hangs as it is claimed, or the daemon stops just then."""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from coatcheck.client.control import ControlError
from coatcheck.client.sandbox import SandboxClient
from coatcheck.durable import starting, warm_machine
from coatcheck.durable.pool import Pool
from coatcheck.durable.warm_machine import WarmMachine
from tests.sandboxes import WANTED, Place, alive, family, place, supervisors, until
from tests.system.durable.warm import POOL, changes, client, filled, gone, ready, where
from tests.upstreams import UpstreamTls

__all__ = ["client", "where"]

pytestmark = [pytest.mark.needs_debian("bwrap", "runc"), pytest.mark.asyncio(loop_scope="module")]


def live_sessions(where: Place) -> set[str]:
    return {each["id"] for each in where.control().list(status="live")}


def _kill_supervisor(one: WarmMachine) -> None:
    one.process.kill()


def _kill_machine(one: WarmMachine) -> None:
    """All of it is dead when this returns: on a busy host a half-dead one can still be claimed."""
    below = psutil.Process(one.process.pid).children(recursive=True)
    for each in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    until(lambda: not any(alive(each.pid) for each in below))


def _hang(one: WarmMachine) -> None:
    one.process.send_signal(signal.SIGSTOP)


@pytest.mark.parametrize(
    ("when", "befalls"),
    [
        ("before its record", _kill_supervisor),
        ("before it is told", _hang),
        ("when it is told", _kill_machine),
        ("when it is told", _hang),
    ],
)
async def test_a_claim_that_fails_becomes_a_boot_and_leaves_no_session(
    where: Place,
    client: SandboxClient,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
    befalls: Callable[[WarmMachine], None],
) -> None:
    """Whatever dies or hangs at whatever step of it: the caller has a sandbox, with sessions of its own, and
    nothing that the other one was given is used again."""
    await asyncio.to_thread(until, lambda: ready(where))
    sessions = live_sessions(where)
    monkeypatch.setattr(warm_machine, "CLAIM_SECONDS", 1.0)
    taken: list[WarmMachine] = []
    claim, sent = starting.claim, WarmMachine.claim

    def at_first(one: WarmMachine, *rest: Any) -> None:
        taken.append(one)
        if when == "before its record":
            befalls(one)
        claim(one, *rest)

    def at_last(one: WarmMachine, spec: Any) -> None:
        if when == "before it is told":
            befalls(one)
        elif when == "when it is told":
            one.line = _Telling(one, befalls)  # type: ignore[assignment]
        sent(one, spec)

    monkeypatch.setattr("coatcheck.durable.sandboxes.claim", at_first)
    monkeypatch.setattr(WarmMachine, "claim", at_last)
    async with await client.create(**WANTED) as sandbox:
        (one,) = taken
        assert sandbox.id != one.id
        assert (await sandbox.run(["echo", "here"])).stdout == b"here\n"
        assert live_sessions(where) - sessions == {*sandbox.shown["sessions"].values()}
        await asyncio.to_thread(gone, one.directory, {one.process.pid})
        if told := [change for change, _ in changes(where, one.id)]:  # it was somebody's already
            assert told == ["created", "ended"]
            await asyncio.to_thread(until, lambda: where.control().sandbox(one.id)["state"] == "ended")
            failed = where.control().sandbox(one.id)
            assert failed["ending"] == "rebind_failed" and not failed["recoverable"]
            assert not set(failed["sessions"].values()) & set(sandbox.shown["sessions"].values())
        assert told or when == "before its record"
    assert live_sessions(where) == sessions


class _Telling:
    """The line to a supervisor, to which something happens before it does what it was told."""

    def __init__(self, one: WarmMachine, befalls: Callable[[WarmMachine], None]) -> None:
        self._one, self._line, self._befalls = one, one.line, befalls

    def sendall(self, data: bytes) -> None:
        _hang(self._one)
        self._line.sendall(data)
        self._befalls(self._one)
        if self._befalls is not _hang:
            self._one.process.send_signal(signal.SIGCONT)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._line, name)


@pytest.mark.parametrize("when", ["it is taken", "it is told", "another boots"])
async def test_a_daemon_that_stops_ends_them_also_one_that_begins_just_then(
    all_output: Path, upstream_tls: UpstreamTls, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """In order: no process, no directory, no session, whatever it had come to; and none begins after that."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    closed: list[bool] = []
    taken: list[Path] = []
    close, take, sent, start = Pool.close, Pool.take, WarmMachine.claim, starting.start

    def stops_here() -> None:
        loop.call_soon_threadsafe(stopping.set)
        until(lambda: closed)

    def taking(pool: Pool, *rest: Any) -> Any:
        found = take(pool, *rest)
        if when == "it is taken":
            stops_here()
        return found

    def telling(one: WarmMachine, spec: Any) -> None:
        if when == "it is told":
            stops_here()
        sent(one, spec)

    def starts(sandbox: Any, *rest: Any) -> Any:
        stops_here()
        taken.append(there.directory(sandbox.id))
        return start(sandbox, *rest)

    def closing(pool: Pool) -> None:
        close(pool)
        closed.append(True)

    monkeypatch.setattr(Pool, "take", taking)
    monkeypatch.setattr(WarmMachine, "claim", telling)
    monkeypatch.setattr("coatcheck.durable.sandboxes.start", starts)
    monkeypatch.setattr(Pool, "close", closing)
    before = supervisors()
    different = {"memory_mib": 100} if when == "another boots" else {}
    async with place(all_output, upstream_tls, **POOL | {"warm_pool": 1}) as there, there.client() as client:
        taken += [each.directory for each in await filled(there, 1)]
        processes = {pid for each in ready(there) for pid in family(each.process.pid)}
        creating = asyncio.create_task(client.create(wait=False, **WANTED, **different))
        await asyncio.wait({creating, asyncio.create_task(stopping.wait())}, return_when="FIRST_COMPLETED")
        assert stopping.is_set()
        await asyncio.to_thread(there.daemon.sandboxes.close)
        assert not supervisors() - before
        assert all(each.over for each in there.daemon.sandboxes.all())
        await asyncio.gather(creating, return_exceptions=True)
        assert not live_sessions(there)
        with pytest.raises(ControlError, match="shutting down"):
            await client.create(wait=False, **WANTED)
        assert not live_sessions(there)
    for directory in taken:
        await asyncio.to_thread(gone, directory, processes)
    assert not there.daemon.sandboxes.pool.memory_mib
