"""A real microVM, inspected: RAM, overlay disk and device state, before and after something is planted."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coatcheck.decision.session import Isolation
from coatcheck.durable.microvm import DurableMicroVM
from coatcheck.durable.spec import Saving
from coatcheck.inspection.holdings import Holdings
from coatcheck.inspection.inspector import Inspector
from coatcheck.inspection.residue import Value
from coatcheck.sandbox.machine import MachineSpec
from coatcheck.sandbox.resources import Resources
from coatcheck.telemetry.audit.checkpoint import CheckpointSigner
from tests.known_secrets import known_secret
from tests.launcher import tiny

pytestmark = pytest.mark.needs_debian("qemu-system-x86_64", "bwrap", "cc")

NAMES = ("remembered", "written", "straddled")
SECRETS = {name: known_secret(f"guest {name}") for name in NAMES}
SECONDS = 120.0


@dataclass
class MachineSubject:
    """A sandbox that is a machine, without a supervisor."""

    machine: DurableMicroVM
    sandbox: str = "sbx_0123456789abcdef"
    sessions: tuple[str, ...] = ("ses_1",)

    async def pause(self) -> bool:
        await self.machine.pause()
        return True

    async def resume(self) -> None:
        await self.machine.resume()

    async def remains(self) -> Sequence[Mapping[str, object]]:
        return [
            {
                "name": each.name,
                "kind": each.kind.value,
                "path": each.path and str(each.path),
                "pid": each.pid,
            }
            for each in await self.machine.remains()
        ]


@pytest.fixture
async def machine(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[DurableMicroVM, tiny.Guest]]:
    directory = tmp_path_factory.mktemp("vm") / secrets.token_hex(8)
    directory.mkdir(mode=0o700)
    image = tiny.build(tmp_path_factory.mktemp("image"))
    machine = DurableMicroVM(
        MachineSpec(Isolation.EMULATED, image, Resources(192, 1, 64, 64), boot_seconds=SECONDS),
        Saving(),
        directory,
    )
    guest = tiny.Guest(await machine.start())
    try:
        assert await guest.line() == "hello"
        yield machine, guest
    finally:
        guest.close()
        await machine.stop()


async def inspected(machine: DurableMicroVM) -> Mapping[str, Any]:
    async def collect(_: Sequence[str]) -> tuple[Holdings, Mapping[str, str]]:
        values = tuple(Value(name, secret.encode()) for name, secret in SECRETS.items())
        return Holdings(values, dict.fromkeys(SECRETS, 1), {}), {}

    inspector = Inspector(collect, CheckpointSigner(Ed25519PrivateKey.generate()), lambda _: None)
    inspection = inspector.start(MachineSubject(machine), "acme", "uid 0")
    async with asyncio.timeout(SECONDS):
        while not inspection.ended:
            await asyncio.sleep(0.02)
    assert inspection.signed is not None, inspection
    said: Mapping[str, Any] = inspection.signed["statement"]
    return said


async def test_a_guest_is_clean_until_something_is_planted_in_it(
    machine: tuple[DurableMicroVM, tiny.Guest],
) -> None:
    """In a program's memory, on its disk, and across two pages; the guest goes on each time."""
    vm, guest = machine
    clean = await inspected(vm)
    assert clean["result"] == "nothing_found" and clean["findings"] == [], clean
    sizes = {region["name"]: region for region in clean["regions"]}
    assert set(sizes) == {"guest memory", "overlay disk", "device state"}
    assert sizes["guest memory"]["bytes"] == 192 << 20
    assert all(region["searched"] > 4096 and not region["unread"] for region in sizes.values())

    assert await guest.ask(f"remember {SECRETS['remembered']}") == "remembered"
    assert await guest.ask(f"put overlay {SECRETS['written']}") == "written"
    half = len(SECRETS["straddled"]) // 2
    first, second = SECRETS["straddled"][:half], SECRETS["straddled"][half:]
    assert await guest.ask(f"straddle {first} {second}") == "straddled"
    found = await inspected(vm)
    assert found["result"] == "found"
    hits = {(hit["credential"], hit["region"]) for hit in found["findings"]}
    assert {
        ("remembered", "guest memory"), ("written", "overlay disk"), ("straddled", "guest memory")
    } <= hits  # fmt: skip
    assert ("written", "overlay disk", 4 << 20, "full") in {
        (hit["credential"], hit["region"], hit["offset"], hit["kind"]) for hit in found["findings"]
    }
    assert not any(secret in json.dumps(found) for secret in SECRETS.values())
    assert await guest.ask("echo alive") == "alive"
