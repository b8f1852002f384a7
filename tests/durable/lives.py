"""A sandbox that can be saved, with a guest and a daemon that do what a test wants."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from coatcheck.durable.spec import DurableSpec, Saving
from coatcheck.durable.supervisor import DurableSupervisor
from coatcheck.launcher.spec import Identity
from coatcheck.metadata.service import MetadataService
from coatcheck.sandbox.machine import MachineSpec
from tests.launcher.scripted import MACHINE, Reports, ScriptedMachine, identity, spec
from tests.launcher.test_supervisor import Life, Nobody, to_its_end

COPY = replace(MACHINE, generation=2)
"""Of what goes on from a snapshot."""


class DurableLife(Life):
    """A supervisor that runs, and what it can do beyond a boot."""

    def __init__(self, machine: ScriptedMachine, reports: Reports, durable: DurableSupervisor) -> None:
        super().__init__(machine, reports, durable.sandbox, durable.run)
        self.durable = durable


def durable_spec(directory: Path, identities: Sequence[Identity], **different: Any) -> DurableSpec:
    """`different`: of it, or of its sandbox."""
    own = {each.name for each in fields(DurableSpec)} & different.keys()
    sandbox = spec(directory, identities, **{name: different[name] for name in different.keys() - own})
    return DurableSpec(sandbox, **{name: different[name] for name in own})


@asynccontextmanager
async def life(
    tmp_path: Path,
    trust: Path,
    machine: ScriptedMachine | None = None,
    built: MachineSpec = MACHINE,
    saving: Saving | None = None,
    **different: Any,
) -> AsyncIterator[DurableLife]:
    """`different`: of its `DurableSpec`, or of the `SupervisorSpec` in that."""
    directory = tmp_path / "sandbox"
    directory.mkdir()
    machine, reports = machine or ScriptedMachine(), Reports()
    identities = [identity(trust), identity(trust, "tool", 1001)]
    told = durable_spec(directory, identities, machine=built, saving=saving or Saving(), **different)
    metadata = MetadataService(Nobody(), told.sandbox.id)
    begun = DurableLife(machine, reports, DurableSupervisor(told, machine, reports, metadata))
    async with to_its_end(begun):
        yield begun
