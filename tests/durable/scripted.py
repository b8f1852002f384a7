"""Machines that can be saved, as far as a supervisor sees it: on disk is a name, what fails is chosen."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

from coatcheck.durable.microvm import DurableMicroVM
from coatcheck.durable.snapshots.manifest import Origin
from coatcheck.sandbox.machine import MachineError
from tests.launcher.scripted import ScriptedMachine


class _Files:
    """What `save` copied, and is no snapshot yet."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def discard(self) -> None:
        shutil.rmtree(self.where, ignore_errors=True)


class Saved:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = _Files(directory.with_name(f".unfinished-{directory.name}"))
        self.files.where.mkdir(parents=True)


class DurableMachine(ScriptedMachine, DurableMicroVM):
    """No hypervisor is in it. `fails_at`: names of the steps (pause, resume, save, finish, sleep, wake) that
    raise from now on."""

    def __init__(self, **different: Any) -> None:
        super().__init__(**different)
        self.did: list[str] = []
        self.fails_at: set[str] = set()
        self.waits_at: dict[str, asyncio.Event] = {}
        self.origins: list[Origin] = []

    async def _step(self, name: str) -> None:
        self.did.append(name)
        if name in self.waits_at:
            await self.waits_at[name].wait()
        if name in self.fails_at:
            raise MachineError(f"{name} did not work", "do something else")

    async def pause(self) -> None:
        await self._step("pause")

    async def resume(self) -> None:
        await self._step("resume")

    async def save(self, directory: Path) -> Any:
        saved = Saved(directory)
        try:
            await self._step("save")
        except BaseException:
            saved.files.discard()
            raise
        return saved

    async def finish(self, saved: Any, origin: Origin) -> Any:
        try:
            await self._step("finish")
        except BaseException:
            saved.files.discard()
            raise
        self.origins.append(origin)
        saved.files.where.rename(saved.directory)

    async def sleep(self, directory: Path, origin: Origin) -> Any:
        await self.finish(await self.save(directory), origin)
        await self._step("sleep")

    async def wake(self) -> None:
        await self._step("wake")

    async def page_out(self) -> int:
        await self._step("page_out")
        return 0
