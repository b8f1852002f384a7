"""In the daemon: begins each life of a sandbox, from a boot or from what was saved of a sandbox.

Each has sessions of its own, of a new generation (I10), within what its caller's grants and this machine give
now. What fails takes back what was done before it. Handlers of the control API and the reconcile loop both
call this; how a session is opened is the control API's matter, and comes as an argument.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from coatcheck.decision.session import Isolation, Session
from coatcheck.durable.durability import RestorePoint
from coatcheck.durable.sandbox import Admitted, ClaimFailed, Sandbox, SandboxIdentity, WantedSandbox
from coatcheck.durable.sandboxes import Sandboxes
from coatcheck.sandbox.sandbox import Ending, SandboxProblem, SandboxRefused, SandboxState
from coatcheck.state.database import Status
from coatcheck.state.errors import Problem, StateError
from coatcheck.state.state import State

POLL_SECONDS: Final = 0.05
"""How often a sandbox that somebody waits for is looked at."""
GONE_SECONDS: Final = 20.0
"""How long an answer to a kill waits for the sandbox to be gone; its sessions are over before that."""
BACK_SECONDS: Final = 120.0
"""For it to be read and to run again; an emulated one on a busy machine takes a tenth."""
SAVE_SECONDS: Final = 240.0
"""For memory to be written: 16 GiB at 100 MB/s, and half as long again."""


@dataclass(frozen=True, slots=True)
class WantedIdentity:
    """One user inside, and the session that is to be opened for it."""

    name: str
    credentials: Sequence[str] | None
    """None: all of the policy, or of the parent."""
    parent: str | None = None
    """The session whose handles its processes hold."""
    lease_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Maker:
    """The caller in whose name an incarnation begins."""

    name: str
    check: Callable[[WantedSandbox, Isolation], None]
    """Raises what the caller is told when its grants, as they are now, do not cover this, or when none begins
    any more."""


type OpenSession = Callable[[Admitted, WantedIdentity, int], Awaitable[SandboxIdentity]]
"""A session of its own for one identity, of that generation, with its socket, handles and trust. Raises a
CoatcheckError."""
type Take = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs what revokes or ends, in a thread: no revocation waits behind sessions that are being opened."""


class Incarnations:
    """Belongs to the loop of `open_session` and `take`. Each call raises SandboxRefused, StateError, or what
    these two and the maker's check raise."""

    def __init__(self, sandboxes: Sandboxes, state: State, open_session: OpenSession, take: Take) -> None:
        self._sandboxes = sandboxes
        self._kept = sandboxes.kept
        self._state = state
        self._open_session = open_session
        self._take = take

    # --- one ----------------------------------------------------------------------------------------------

    async def make(self, wanted: WantedSandbox, identities: Sequence[WantedIdentity]) -> Sandbox:
        """A new sandbox that is starting."""
        admitted = await asyncio.to_thread(self._sandboxes.admit, wanted)
        with self._withdrawn_if_it_fails(admitted):
            return await self._begin(admitted, identities, None)

    async def restore(self, sandbox: Sandbox, maker: Maker, snapshot: str | None) -> Sandbox:
        """It goes on from the snapshot of that name, or the newest; what it is now is gone, if it runs. As it
        is once it runs."""
        sandboxes, before = self._sandboxes, self._revoked_names(sandbox)
        saved = await asyncio.to_thread(self._kept.saved, sandbox.id, snapshot)
        with self._kept.using(sandbox.id, saved):
            await asyncio.to_thread(
                self._kept.restore_point, sandbox.id, saved
            )  # before anything ends for it
            if not sandboxes.is_down(sandbox.id):
                detail = f"restored to {saved.name} by {maker.name}"
                await self._take(lambda: sandboxes.kill(sandbox.id, Ending.RESTORED, detail))
                await self.until(sandbox.id, lambda now: sandboxes.is_down(now.id), GONE_SECONDS)
            back = await self.begin_again(sandbox.id, maker, saved)
            await self._revoke_late(sandbox, before, back)
            return await self.running(back)

    async def wake(self, sandbox: Sandbox, maker: Maker) -> Sandbox:
        """A sandbox that sleeps is on its way back, or there; any other is as it was."""
        sandboxes = self._sandboxes
        if sandbox.state is not SandboxState.SLEEPING:
            return sandbox
        if not sandboxes.is_down(sandbox.id):
            await asyncio.to_thread(sandboxes.ask, sandbox.id, "POST", "/wake", {}, BACK_SECONDS)
            return sandboxes.reported(sandbox.id, SandboxState.RUNNING) or sandbox
        if self.is_revoked(sandbox):
            raise SandboxRefused(
                SandboxProblem.NOT_WOKEN,
                "its session was revoked while it slept",
                f"Create another one; or, if it may go on: coatcheck sandbox restore {sandbox.id}",
            )
        saved = await asyncio.to_thread(self._kept.saved, sandbox.id, None)
        try:
            return await self.restore_unattended(sandbox, maker, saved)
        except SandboxRefused as refused:
            if refused.problem is not SandboxProblem.SANDBOX_BUSY:
                raise
            return sandboxes.get(sandbox.id) or sandbox  # somebody else wakes it just now

    async def woken(self, sandbox: Sandbox, maker: Maker) -> Sandbox:
        """As it is once it is awake. SandboxRefused when it sleeps on."""
        sandbox = await self.running(await self.wake(sandbox, maker))
        if sandbox.over:
            sandbox = await self.until(sandbox.id, lambda now: self._sandboxes.is_down(now.id), GONE_SECONDS)
        if sandbox.state is SandboxState.SLEEPING:
            raise SandboxRefused(
                SandboxProblem.NOT_WOKEN,
                f"it was not woken, and sleeps on: {sandbox.detail}",
                "Wake it again when that is mended; or go back to a snapshot: coatcheck sandbox restore.",
            )
        return sandbox

    async def restore_unattended(
        self, sandbox: Sandbox, maker: Maker, saved: Path, until: float | None = None
    ) -> Sandbox:
        """`begin_again` where no caller asked for a restore: a revocation from before this call takes effect,
        too. Where several share the sandbox, `identities` has seen to those."""
        before = self._revoked_names(sandbox) if sandbox.keeping.shares else frozenset()
        back = await self.begin_again(sandbox.id, maker, saved, until)
        await self._revoke_late(sandbox, before, back)
        return back

    async def begin_again(
        self, sandbox_id: str, maker: Maker, saved: Path, until: float | None = None
    ) -> Sandbox:
        """It begins from what was saved in `saved`, under its own id and its maker's name. `until`: when its
        time is over, Unix seconds; None: it has the whole again."""
        back = await asyncio.to_thread(self._kept.restore_point, sandbox_id, saved)
        admitted = await self._admit(self._wanted(sandbox_id), maker, sandbox_id)
        with self._withdrawn_if_it_fails(admitted):
            if until is not None:
                left = max(1, int(until - time.time()))
                admitted = replace(admitted, limits=replace(admitted.limits, run_seconds=left))
            return await self._begin(admitted, self.identities(back, admitted.wanted), back)

    # --- several ------------------------------------------------------------------------------------------

    def check_forkable(self, sandbox_id: str) -> None:
        if self._wanted(sandbox_id).volumes:
            raise SandboxRefused(
                SandboxProblem.UNSAVABLE,
                "it has a volume, which one sandbox has at a time",
                "Fork a sandbox without volumes; copy what it needs into it.",
            )

    async def fork(self, sandbox: Sandbox, maker: Maker, name: str | None, count: int) -> Sequence[Sandbox]:
        """Copies of it as it is now, or as the snapshot of that name; as they are once they run."""
        sandboxes, point, before = self._sandboxes, None, self._revoked_names(sandbox)
        if name is None and not sandboxes.is_down(sandbox.id):
            asked = partial(sandboxes.ask, sandbox.id, "POST", "/fork-point", {}, SAVE_SECONDS)
            said = await asyncio.to_thread(asked)
            point = Path(said["directory"])
        try:
            saved = point
            if saved is None:
                saved = await asyncio.to_thread(self._kept.saved, sandbox.id, name)
            with self._kept.using(sandbox.id, saved):
                back = await asyncio.to_thread(self._kept.restore_point, sandbox.id, saved)
                clones = await self._clones(self._wanted(sandbox.id), back, maker, count)
                for each in clones:
                    await self._revoke_late(sandbox, before, each)
                return [await self.running(each) for each in clones]
        finally:
            if point is not None:  # they have read it, or never will
                await asyncio.to_thread(self._kept.drop, point)

    async def _clones(
        self, wanted: WantedSandbox, back: RestorePoint, maker: Maker, count: int
    ) -> Sequence[Sandbox]:
        """All of them are starting, or none."""
        mine = replace(wanted, opened_by=maker.name)  # a copy belongs to the caller that makes it
        begun: list[Sandbox] = []
        admitted: list[Admitted] = []
        try:
            for _ in range(count):
                room = await self._admit(mine, maker, None)
                admitted.append(room)
            async with self._memory(back, count) as given:
                for each in admitted:
                    clone = await self._begin(each, self.identities(back, wanted), given)
                    begun.append(clone)
        except BaseException:
            for each in admitted:
                self._sandboxes.withdraw(each)
            for clone in begun:
                self._sandboxes.kill(clone.id, Ending.KILLED, "not all of the fork could be made")
            raise
        return begun

    @asynccontextmanager
    async def _memory(self, back: RestorePoint, count: int) -> AsyncIterator[RestorePoint]:
        """One copy has memory of its own, which can grow and be given back. Several share what none of them
        changes: ten cost what they touch."""
        if count == 1:
            yield back
            return
        sharing = self._kept.shared(back)
        given = await asyncio.to_thread(sharing.__enter__)
        try:
            yield given
        finally:
            sharing.__exit__(None, None, None)

    # --- the steps of each --------------------------------------------------------------------------------

    def _wanted(self, sandbox_id: str) -> WantedSandbox:
        record = self._kept.record(sandbox_id)
        if record is None:
            raise SandboxRefused(
                SandboxProblem.UNSAVABLE,
                "it has no saved state: it is not a microVM, or it ended without a snapshot",
                "Create another one.",
            )
        return record.wanted

    async def _admit(self, wanted: WantedSandbox, maker: Maker, sandbox_id: str | None) -> Admitted:
        """Room for it. Its isolation is measured anew: a credential may have been granted for that."""
        now = await asyncio.to_thread(self._sandboxes.choose, wanted.choice.backend, None)
        if now.isolation is not wanted.choice.isolation:
            raise SandboxRefused(
                SandboxProblem.NO_BACKEND,
                f"it was isolated as {wanted.choice.isolation}, and this machine gives {now.isolation}",
                "Restore it on a machine of its kind.",
            )
        maker.check(wanted, now.isolation)
        return await asyncio.to_thread(self._sandboxes.admit, wanted, sandbox_id)

    def identities(self, back: RestorePoint, wanted: WantedSandbox) -> list[WantedIdentity]:
        """Who was inside, with what every session of theirs since then was left with: going back to an older
        snapshot undoes no revocation. An identity that was revoked and left behind in a sandbox that others
        share has nothing. After an import what was written down counts, and the handles that its processes
        hold mean nothing."""
        life = back.last or max(back.lives, key=lambda each: each.generation)
        since = [each for each in back.lives if back.last is None or each.generation >= life.generation]
        policy = self._state.policies.get(wanted.policy)
        found = []
        for name, session_id in life.sessions.items():
            theirs = [self._known(each.sessions[name]) for each in since if name in each.sessions]
            left = frozenset(life.credentials[name]).intersection(*(each.credentials for each in theirs))
            if policy is not None:  # it may have lost one meanwhile
                left &= policy.credentials.keys()
            if wanted.keeping.shares and any(
                self._state.status(each.id) is Status.REVOKED for each in theirs
            ):
                found.append(WantedIdentity(name, []))
            elif back.last is not None:
                lease = self._state.session(session_id).lease_seconds
                found.append(WantedIdentity(name, sorted(left), session_id, lease))
            else:
                found.append(WantedIdentity(name, sorted(left)))
        return found

    def _known(self, session_id: str) -> Session:
        session = self._state.sessions.by_id.get(session_id)
        if session is None:
            raise StateError(
                Problem.UNKNOWN_SESSION,
                "a session that it had is not known any more: the state was lost, and with it what was"
                " revoked",
                "Create another sandbox: `coatcheck sandbox run`.",
            )
        return session

    async def _begin(
        self, admitted: Admitted, identities: Sequence[WantedIdentity], back: RestorePoint | None
    ) -> Sandbox:
        """An incarnation of an admitted sandbox, with sessions of its own; or nothing is left of it."""
        try:
            return await self._start(admitted, identities, back, boots=False)
        except ClaimFailed:
            # Nothing that was given to the one that failed is given to another: new sessions, new handles.
            return await self._start(admitted, identities, back, boots=True)

    @contextmanager
    def _withdrawn_if_it_fails(self, admitted: Admitted) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._sandboxes.withdraw(admitted)
            raise

    async def _start(
        self,
        admitted: Admitted,
        identities: Sequence[WantedIdentity],
        back: RestorePoint | None,
        *,
        boots: bool,
    ) -> Sandbox:
        """Its sessions, then its supervisor. Unless it `boots`, the warm pool may have it."""
        opened: list[SandboxIdentity] = []
        try:
            generation = await asyncio.to_thread(self._kept.next_generation, admitted.id, back)
            for each in identities:
                identity = await self._open_session(admitted, each, generation)
                opened.append(identity)  # at once: what fails next must find it
            return await asyncio.to_thread(self._start_supervisor, admitted, opened, back, boots=boots)
        except BaseException:
            maker = admitted.wanted.opened_by
            for made in opened:
                await self._take(partial(self._state.end, made.session, maker))
            raise

    def _start_supervisor(
        self,
        admitted: Admitted,
        opened: Sequence[SandboxIdentity],
        back: RestorePoint | None,
        *,
        boots: bool,
    ) -> Sandbox:
        """What ended a session before this had ended no sandbox: none had that session yet."""
        begun = self._sandboxes.start(admitted, opened, back, boots=boots)
        over = frozenset(filter(self._is_over, begun.sessions.values()))
        if over:
            self._sandboxes.sessions_over(over, self._is_over)
        return begun

    # --- what was revoked ---------------------------------------------------------------------------------

    def is_revoked(self, sandbox: Sandbox) -> bool:
        """Whether a session of its last incarnation was revoked; where several share it, all of them. One
        that is not known any more counts as revoked: a state that was lost has lost what was revoked, too."""
        whose = [
            each not in self._state.sessions.by_id or self._state.status(each) is Status.REVOKED
            for each in sandbox.sessions.values()
        ]
        return bool(whose) and (all if sandbox.keeping.shares else any)(whose)

    async def _revoke_late(self, source: Sandbox, before: AbstractSet[str], begun: Sandbox) -> None:
        """What of `source` was revoked since `before` is revoked in `begun`, too: its new sessions were not
        there yet then. Of one that several share, only those that were revoked."""
        late = self._revoked_names(source) - before
        if late and not source.keeping.shares:
            late = frozenset(begun.sessions)
        for name in late & begun.sessions.keys():
            why = "its source session was revoked in the meantime"
            await self._take(partial(self._state.revoke, begun.sessions[name], begun.opened_by, why))

    def _is_over(self, session_id: str) -> bool:
        known = session_id in self._state.sessions.by_id
        return not known or self._state.status(session_id) is not Status.LIVE

    def _revoked_names(self, sandbox: Sandbox) -> frozenset[str]:
        known = {name: each for name, each in sandbox.sessions.items() if each in self._state.sessions.by_id}
        return frozenset(name for name, each in known.items() if self._state.status(each) is Status.REVOKED)

    # --- waiting ------------------------------------------------------------------------------------------

    async def running(self, sandbox: Sandbox) -> Sandbox:
        """As it is once it runs, or did not come to that; waits for as long as that may take."""
        return await self.until(sandbox.id, lambda now: now.state is not SandboxState.STARTING, BACK_SECONDS)

    async def until(self, sandbox_id: str, done: Callable[[Sandbox], bool], seconds: float) -> Sandbox:
        """As it is then, or after so long."""
        until = time.monotonic() + seconds
        while True:
            now = self._sandboxes.settle(sandbox_id)
            if now is None:
                raise SandboxRefused(SandboxProblem.UNKNOWN_SANDBOX, "it is gone", "Create another one.")
            if done(now) or time.monotonic() > until:
                return now
            await asyncio.sleep(POLL_SECONDS)
