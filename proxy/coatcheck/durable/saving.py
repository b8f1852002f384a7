"""In the supervisor: saves a running sandbox: it is frozen for a moment, copied, and continues."""

import asyncio
import logging
import secrets
import shutil
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from coatcheck.durable.freeze import freeze, thaw
from coatcheck.durable.microvm import DurableMicroVM, SavedMachine
from coatcheck.durable.rebinding import ASLEEP
from coatcheck.durable.snapshots import manifest
from coatcheck.durable.snapshots.manifest import Origin
from coatcheck.durable.snapshots.store import Store
from coatcheck.durable.spec import DurableSpec
from coatcheck.launcher.agent import AgentError
from coatcheck.launcher.channel import Channel, ChannelBroken
from coatcheck.launcher.operations import cancelled
from coatcheck.launcher.tasks import in_thread
from coatcheck.launcher.trust import digest
from coatcheck.sandbox.machine import MachineError
from coatcheck.sandbox.refusal import refuse
from coatcheck.sandbox.sandbox import Ending, SandboxProblem, SandboxRefused, SandboxState

SAVE_SECONDS: Final = 600.0
"""For a machine to be copied, or to be loaded again: 64 GiB at a slow disk's 100 MiB a second."""
SNAPSHOTS: Final = "snapshots"
FORKS: Final = "forks"
"""Below a sandbox's `store`."""

FAILURES: Final = (MachineError, AgentError, ChannelBroken, TimeoutError, OSError)
"""What a machine, a guest or a disk can come to while something is done to it."""

logger = logging.getLogger(__name__)

type End = Callable[[Ending, str], None]


class Saver:
    """`state` and `end` are the supervisor's."""

    def __init__(
        self, spec: DurableSpec, machine: DurableMicroVM | None, state: Callable[[], SandboxState], end: End
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
        key = self._spec.saving.snapshot_key
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
                logger.warning("sandbox %s keeps the snapshot %s: %s", self._spec.sandbox.id, replaces, error)
        return directory

    async def fork_point(self, channel: Channel) -> Path:
        """A snapshot that its forks begin from; the caller removes it. SandboxRefused."""
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

    def durable(self) -> tuple[DurableMicroVM, Path]:
        """The machine, and where it is saved. SandboxRefused when it cannot be."""
        if self._spec.store is None or self._machine is None:
            raise refuse(SandboxProblem.UNSAVABLE)
        return self._machine, self._spec.store

    async def _save(self, channel: Channel, machine: DurableMicroVM, directory: Path) -> None:
        self._check_running()
        saved: SavedMachine | None = None
        try:
            try:
                async with asyncio.timeout(SAVE_SECONDS):
                    await freeze(channel)
                    saved = await machine.save(directory)
            finally:
                # Not while the whole sandbox ends. Whatever else happened, it does not stay as it stands.
                if not cancelled():
                    await self._go_on(channel, machine)
            await machine.finish(saved, self._origin())
        except FAILURES as error:
            raise _not_saved(error) from None
        finally:
            if saved is not None:
                await in_thread(saved.files.discard)  # nothing is left to, when it was finished

    async def _go_on(self, channel: Channel, machine: DurableMicroVM) -> None:
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

    def _origin(self) -> Origin:
        own = [each.session for each in self._spec.sandbox.identities]
        return Origin(
            self._spec.sandbox.id,
            tuple(dict.fromkeys([*own, *self._spec.ancestors])),
            time.time(),
            digest(self._spec.sandbox.identities),
        )


def _not_saved(error: Exception) -> SandboxRefused:
    return refuse(
        SandboxProblem.NOT_SAVED,
        str(error) or f"it took longer than {SAVE_SECONDS:g} s",
        getattr(error, "hint", ""),
    )
