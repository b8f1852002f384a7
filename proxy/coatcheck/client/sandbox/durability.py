"""A sandbox beyond one life: saved, restored, asleep and awake."""

import asyncio
from collections.abc import Sequence

from coatcheck.client.control import Answer, ControlClient


class Keeping:
    """The part of a `Sandbox` that outlives what runs in it."""

    def __init__(self, control: ControlClient, shown: Answer) -> None:
        self._control = control
        self.shown = shown
        """As the control API last showed it."""

    @property
    def id(self) -> str:
        return str(self.shown["id"])

    async def snapshot(self, name: str) -> Answer:
        """Save it under a name; it stands still for a moment. `{name, created_at, generation, …}`."""
        return await asyncio.to_thread(self._control.take_snapshot, self.id, name)

    async def snapshots(self) -> Sequence[Answer]:
        """The oldest first."""
        return await asyncio.to_thread(self._control.snapshots, self.id)

    async def remove_snapshot(self, name: str) -> None:
        await asyncio.to_thread(self._control.remove_snapshot, self.id, name)

    async def restore(self, snapshot: str | None = None) -> None:
        """It goes on from a snapshot (the newest), with new sessions. What it is now is gone."""
        self.shown = await asyncio.to_thread(self._control.restore_sandbox, self.id, snapshot)

    async def sleep(self) -> None:
        """Saved, and without memory until `wake` or until it is used."""
        self.shown = await asyncio.to_thread(self._control.sleep_sandbox, self.id)

    async def wake(self) -> None:
        self.shown = await asyncio.to_thread(self._control.wake_sandbox, self.id)
