"""A running sandbox saved: it stands still for a moment, is copied, and goes on undisturbed.

One thing at a time is done to a machine; whoever asked may go away meanwhile, and nothing stays half done.
"""

import asyncio
import logging
import secrets
import shutil
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from coatcheck.durable.freeze import AgentError, freeze, thaw
from coatcheck.durable.snapshots import manifest
from coatcheck.durable.snapshots.manifest import Origin
from coatcheck.durable.snapshots.store import Store
from coatcheck.launcher.channel import Channel, ChannelBroken
from coatcheck.launcher.machine import MachineError
from coatcheck.launcher.refusal import refuse
from coatcheck.launcher.sandbox import Ending, SandboxProblem, SandboxRefused, SandboxState
from coatcheck.launcher.spec import SupervisorSpec
from coatcheck.launcher.tasks import in_thread
from coatcheck.launcher.trust import digest

SAVE_SECONDS: Final = 600.0
"""For a machine to be copied, or to be loaded again: 64 GiB at a slow disk's 100 MiB a second."""
SNAPSHOTS: Final = "snapshots"
FORKS: Final = "forks"
ASLEEP: Final = "asleep"
"""Below a sandbox's `store`."""

FAILURES: Final = (MachineError, AgentError, ChannelBroken, TimeoutError, OSError)
"""What a machine, a guest or a disk can come to while something is done to it."""

logger = logging.getLogger("coatcheck.launcher")

type End = Callable[[Ending, str], None]


@runtime_checkable
class Durable(Protocol):
    """A machine that can be saved: `microvm.MicroVM`."""

    async def pause(self) -> None: ...
    async def resume(self) -> None: ...
    async def save(self, directory: Path) -> Any: ...
    async def finish(self, saved: Any, origin: Origin) -> object: ...
    async def sleep(self, directory: Path, origin: Origin) -> object: ...
    async def wake(self) -> None: ...
    async def page_out(self) -> int: ...


class OperationQueue:
    """What is done to a machine, one after the other, and to its end whoever waits for it."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._doing: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def take[T](self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `work` returns or raises; ChannelBroken when the sandbox ended meanwhile. It goes on when its
        caller is cancelled: half of it is no state."""
        task = self.start(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not _cancelled():
                raise ChannelBroken("the sandbox ended meanwhile") from None
            raise

    def start[T](self, work: Callable[[], Coroutine[Any, Any, T]]) -> "asyncio.Task[T]":
        """The same, waited for by nobody."""

        async def in_turn() -> T:
            async with self._turn:
                if self._closed:
                    raise ChannelBroken("the sandbox ended meanwhile")
                return await work()

        task = asyncio.create_task(in_turn())
        self._doing.add(task)
        task.add_done_callback(self._done)
        return task

    def aside(self, work: Coroutine[Any, Any, Any]) -> None:
        """Beside what is being done: it may take long, or come to nothing."""
        task = asyncio.create_task(work)
        self._doing.add(task)
        task.add_done_callback(self._done)

    def close(self) -> None:
        """The sandbox ends: what is being done is of no use any more."""
        self._closed = True
        for task in self._doing:
            task.cancel()

    async def closed(self) -> None:
        """When nothing is being done any more."""
        await asyncio.gather(*self._doing, return_exceptions=True)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._doing.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked has been told, or has gone


class Saver:
    """`state` and `end` are the supervisor's."""

    def __init__(
        self, spec: SupervisorSpec, machine: object, state: Callable[[], SandboxState], end: End
    ) -> None:
        self._spec = spec
        self._machine = machine
        self._state = state
        self._end = end

    def sweep(self) -> None:
        """Remove what one before us left half written. Blocking; before anything is saved."""
        if (store := self._spec.store) is not None:
            for place in (store, store / SNAPSHOTS, store / FORKS):
                Store(place).sweep()

    async def snapshot(self, channel: Channel, name: str, replaces: str | None, limit: int) -> Path:
        """Its directory, once it is there. SandboxRefused; then it goes on as it was. `replaces`: the one
        that is removed once this one is there. `limit`: how many there may be, as the daemon has it now."""
        machine, store = self.durable()
        key = self._spec.machine.snapshot_key
        if key is None:
            raise refuse(SandboxProblem.UNSAVABLE)
        kept = Store(store / SNAPSHOTS, limit)
        try:
            directory = await asyncio.to_thread(lambda: kept.place(name, manifest.open_key(key), replaces))
        except MachineError as error:
            raise _not_saved(error) from None
        await self._save(channel, machine, directory)
        if replaces is not None:
            try:
                await in_thread(lambda: kept.remove(replaces))
            except (MachineError, OSError) as error:  # one too many is no reason to lose this one
                logger.warning("sandbox %s keeps the snapshot %s: %s", self._spec.id, replaces, error)
        return directory

    async def fork_point(self, channel: Channel) -> Path:
        """A snapshot that its forks begin from; whoever asked for it removes it. SandboxRefused."""
        machine, store = self.durable()
        directory = store / FORKS / secrets.token_hex(8)
        await self._save(channel, machine, directory)
        return directory

    async def drop(self, made: Iterable[Path]) -> None:
        """Fork points that nobody begins from."""
        for directory in made:
            await in_thread(partial(shutil.rmtree, directory, ignore_errors=True))

    async def sleep(self, channel: Channel) -> Path:
        """Frozen, saved, its machine gone: where it was saved. SandboxRefused; then it goes on as it was."""
        machine, store = self.durable()
        directory = store / ASLEEP
        self._check_running()
        try:
            await in_thread(lambda: shutil.rmtree(directory, ignore_errors=True))  # of an earlier sleep
            async with asyncio.timeout(SAVE_SECONDS):
                await freeze(channel)
                await machine.sleep(directory, self._origin())
        except FAILURES as error:
            await self._go_on(channel, machine)
            raise _not_saved(error) from None
        return directory

    def durable(self) -> tuple[Durable, Path]:
        """The machine, and where it is saved. SandboxRefused when it cannot be."""
        if self._spec.store is None or not isinstance(self._machine, Durable):
            raise refuse(SandboxProblem.UNSAVABLE)
        return self._machine, self._spec.store

    async def _save(self, channel: Channel, machine: Durable, directory: Path) -> None:
        self._check_running()
        saved: Any = None
        try:
            try:
                async with asyncio.timeout(SAVE_SECONDS):
                    await freeze(channel)
                    saved = await machine.save(directory)
            finally:
                # Not while the whole sandbox ends. Whatever else happened, it does not stay as it stands.
                if not _cancelled():
                    await self._go_on(channel, machine)
            await machine.finish(saved, self._origin())
        except FAILURES as error:
            raise _not_saved(error) from None
        finally:
            if saved is not None:
                await in_thread(saved.files.discard)  # nothing is left to, when it was finished

    async def _go_on(self, channel: Channel, machine: Durable) -> None:
        try:
            await machine.resume()
            await thaw(channel)
        except FAILURES as error:
            # Half of it may stand still for good: such a sandbox must not look alive.
            self._end(Ending.MACHINE_ENDED, f"it did not go on after it was saved: {error}")
            raise _not_saved(error) from None

    def _check_running(self) -> None:
        if self._state() is not SandboxState.RUNNING:
            raise refuse(SandboxProblem.NOT_RUNNING, f"it is {self._state()}")

    def is_trust_new(self) -> bool:
        """Whether a copy was saved with another CA than its sessions have now. Blocking."""
        restore, key = self._spec.machine.restore, self._spec.machine.snapshot_key
        if restore is None or key is None:
            return True
        try:
            saved = manifest.read(restore, manifest.open_key(key))
        except MachineError:
            return True  # whoever loads it is told why it cannot be used
        return saved.origin.trust != digest(self._spec.identities)

    def _origin(self) -> Origin:
        own = [each.session for each in self._spec.identities]
        return Origin(
            self._spec.id,
            tuple(dict.fromkeys([*own, *self._spec.ancestors])),
            time.time(),
            digest(self._spec.identities),
        )


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _not_saved(error: Exception) -> SandboxRefused:
    return refuse(
        SandboxProblem.NOT_SAVED,
        str(error) or f"it took longer than {SAVE_SECONDS:g} s",
        getattr(error, "hint", ""),
    )
