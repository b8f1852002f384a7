"""An image, a key and the snapshots of one sandbox: what all machines of a test file share."""

import contextlib
import secrets
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coatcheck.durable.microvm import DurableMicroVM
from coatcheck.durable.snapshots.manifest import Origin
from coatcheck.durable.spec import Saving
from coatcheck.sandbox.machine import MachineError, MachineSpec
from coatcheck.sandbox.resources import Size
from tests.launcher import tiny
from tests.system.launcher.test_microvm import groups, wanted

ORIGIN = Origin("sbx_0123456789abcdef", ("ses_1",), 1795280977.0)


class World:
    """What all machines of this file share: an image, a key, the snapshots of one sandbox."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.image = tiny.build(place)
        self.snapshots = place / "snapshots"
        self.snapshots.mkdir(mode=0o700)
        self.key = place / "snapshots.key"

    def spec(self) -> MachineSpec:
        return replace(wanted(self.image), starts_with=Size(192, 1), generation=4)

    def saving(self, restore: Path | None = None, template: int | None = None) -> Saving:
        return Saving(restore, template, snapshot_key=self.key, snapshots=self.snapshots)

    def directory(self) -> Path:
        made = self.place / secrets.token_hex(8)
        made.mkdir(mode=0o700)
        return made

    @contextlib.asynccontextmanager
    async def machine(
        self, restore: Path | None = None, template: int | None = None
    ) -> AsyncIterator[tuple[DurableMicroVM, tiny.Guest]]:
        """With `restore`, one that stands still."""
        directory = self.directory()
        machine = DurableMicroVM(self.spec(), self.saving(restore, template), directory)
        guest = tiny.Guest(await machine.start())
        try:
            yield machine, guest
        finally:
            guest.close()
            await machine.stop()
            assert list(directory.iterdir()) == []
            assert groups(f"coatcheck-{directory.name}") == []

    def copy(self, snapshot: Path) -> Path:
        """Another snapshot with the same bytes, to spoil."""
        return Path(shutil.copytree(snapshot, self.snapshots / secrets.token_hex(4)))


async def failing(world: World, snapshot: Path, template: int | None = None, **changes: Any) -> str:
    """What is said of a snapshot that cannot be restored; nothing is left of the attempt."""
    directory = world.directory()
    spec, saving = replace(world.spec(), **changes), world.saving(snapshot, template)
    machine = DurableMicroVM(spec, saving, directory)
    with pytest.raises(MachineError) as caught:
        await machine.start()
    assert list(directory.iterdir()) == []
    assert groups(f"coatcheck-{directory.name}") == []
    assert caught.value.hint
    return str(caught.value)
