"""Who is brought back, in whose name, and what is said when that comes to nothing. Real ones:
tests/system/e2e/test_four_lifecycles_of_one_launcher.py."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coatcheck.control import sandbox_recovery
from coatcheck.control.problem import ControlProblem
from coatcheck.control.sandbox_recovery import Recovery
from coatcheck.durable.sandbox import Sandbox
from coatcheck.launcher.sandbox import (
    Ending,
    SandboxProblem,
    SandboxState,
)
from tests.durable.test_recovery import DEAD


class World:
    """One sandbox that died, and a clock that stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = DEAD.created_at
        self.serving = True
        self.maker: str | None = "launcher"
        self.sandbox = DEAD
        self.attempts: tuple[float, ...] = ()
        self.told: list[str] = []
        self.given_up = ""
        self.began: list[tuple[str, str, float]] = []
        self.fails: ControlProblem | None = None
        kept = SimpleNamespace(
            recoveries=lambda _: self.attempts,
            recovering=lambda _, now: setattr(self, "attempts", (*self.attempts, now)),
            saved=lambda _, name: Path("newest"),
        )
        sandboxes = SimpleNamespace(
            kept=kept,
            all=lambda: [self.sandbox],
            get=lambda _: self.sandbox,
            noted=self._noted,
            give_up=self._give_up,
        )
        context: Any = SimpleNamespace(backend=self)
        self.sandboxes = sandboxes
        self.recovery = Recovery(context, self._named)
        self.revoked = False
        monkeypatch.setattr(sandbox_recovery, "restore_unattended", self._bring_back)
        monkeypatch.setattr(sandbox_recovery, "revoked", lambda context, sandbox: self.revoked)
        monkeypatch.setattr(sandbox_recovery, "LOOK_SECONDS", 0.0)
        monkeypatch.setattr(sandbox_recovery, "time", SimpleNamespace(time=lambda: self.now))

    def _named(self, name: str) -> Any:
        return self.maker  # a caller is a name here

    def _noted(self, sandbox: str, change: str, detail: str) -> None:
        self.told.append(f"{change}: {detail}")

    def _give_up(self, sandbox: str, detail: str, why: Ending) -> None:
        self.given_up = f"{why}: {detail}"
        self.sandbox = replace(self.sandbox, keeping=replace(self.sandbox.keeping, recovers=False))

    async def _bring_back(
        self, context: Any, sandbox: Sandbox, maker: Any, saved: Path, until: float
    ) -> Sandbox:
        assert self.attempts[-1] == self.now  # it was written down before
        if self.fails is not None:
            raise self.fails
        self.began.append((maker, saved.name, until))
        self.sandbox = replace(self.sandbox, state=SandboxState.STARTING)
        return self.sandbox

    async def at(self, later: float) -> None:
        self.now = DEAD.created_at + later
        before = len(self.told) + len(self.given_up)
        running = asyncio.create_task(self.recovery.run())
        for _ in range(200):  # work in threads among it
            await asyncio.sleep(0.001)
            if len(self.told) + len(self.given_up) > before:
                break
        await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_it_is_brought_back_in_its_makers_name_until_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the newest that was saved; the attempt is counted before it begins, and told with the reason."""
    world = World(monkeypatch)
    world.sandbox = replace(DEAD, detail="QEMU was killed by signal 9")
    await world.at(1)
    assert world.began == [("launcher", "newest", DEAD.expires_at)]
    assert world.told == ["recovering: attempt 1 of 3: machine_ended: QEMU was killed by signal 9"]


async def test_a_daemon_that_goes_begins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it ends as it goes died of nothing."""
    world = World(monkeypatch)
    world.serving = False
    await world.at(1)
    assert (world.began, world.told, world.attempts) == ([], [], ())


@pytest.mark.parametrize("why", ["a refusal", "a maker that is gone"])
async def test_what_cannot_be_is_tried_three_times_and_then_said(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """In the words of whatever kept it from coming back."""
    world = World(monkeypatch)
    if why == "a refusal":
        world.fails = ControlProblem(SandboxProblem.NO_ROOM, "no room for it", "Wait.")
    else:
        world.maker = None
    for later in (1, 6, 36, 37):
        await world.at(later)
    assert len(world.attempts) == 3 and not world.began
    assert "it was brought back 3 times within 10 minutes, and died again" in world.given_up
    last = "no room for it. Wait." if why == "a refusal" else "there is no caller launcher any more"
    assert world.given_up.endswith(last)


async def test_one_that_was_revoked_when_it_was_down_stays_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest can die when it likes, and somebody revokes it in that second."""
    world = World(monkeypatch)
    world.revoked = True
    await world.at(1)
    assert (world.began, world.attempts) == ([], ())
    assert world.given_up == "session_over: it died, and its session was revoked: only a person restores it"
