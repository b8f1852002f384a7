"""Another size over the API: who may ask, what a sandbox of one size says, what only supervisors say."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from coatcheck.client.sandbox import Sandbox
from tests.sandboxes import WANTED, Place, place, sandbox_in
from tests.system.control.resources.test_sandboxes import refused
from tests.upstreams import UpstreamTls

pytestmark = [pytest.mark.needs_debian("bwrap", "runc"), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def where(all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[Place]:
    async with place(all_output, upstream_tls, sandbox_total_memory=1024) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(where: Place) -> AsyncIterator[Sandbox]:
    async with sandbox_in(where, "launcher", memory_mib=256) as made:
        yield made


async def test_a_sandbox_of_one_size_says_so(where: Place, sandbox: Sandbox) -> None:
    """In the words of its supervisor, and before anybody asks."""
    assert sandbox.shown["elastic"] is None and "only a microVM has a balloon" in sandbox.shown["one_size"]
    assert sandbox.shown["elastic"] is None
    assert await refused(sandbox.scale(memory_mib=512)) == "not_elastic"


async def test_only_a_microvm_has_a_range(where: Place) -> None:
    """Said when it is asked for; and an autoscaler needs one."""
    async with where.client("launcher") as client:
        assert await refused(client.create(**WANTED, max_memory_mib=2048)) == "not_elastic"
        assert await refused(client.create(**WANTED, autoscale={})) == "beyond_limit"
        assert await refused(client.create(**WANTED, autoscale={"up_percent": 50})) == "malformed"


async def test_whoever_may_not_use_it_does_not_resize_it(where: Place, sandbox: Sandbox) -> None:
    """Another's is as unknown as none; its operator ends it, and does not use it."""
    for caller, reason in (("other", "unknown_sandbox"), ("operator", "forbidden")):
        asked = asyncio.to_thread(where.control(caller).scale_sandbox, sandbox.id, 512)
        assert await refused(asked) == reason


async def test_what_a_sandbox_counts_for_is_said_by_supervisors_only(where: Place, sandbox: Sandbox) -> None:
    """And held against what this machine has promised. It stands in the audit log."""
    theirs = asyncio.to_thread(where.control("launcher").size_sandbox, sandbox.id, 512, 1, "caller")
    assert await refused(theirs) == "forbidden"
    control = where.control()
    sized = await asyncio.to_thread(control.size_sandbox, sandbox.id, 512, 2, "autoscaler")
    assert (sized["memory_mib"], sized["cpus"]) == (512, 2)
    beyond = asyncio.to_thread(control.size_sandbox, sandbox.id, 1100, 2, "autoscaler")
    assert await refused(beyond) == "no_room"
    assert (await sandbox.refresh())["memory_mib"] == 512
    records = [e for e in where.daemon.records() if e["type"] == "sandbox" and e["change"] == "resized"]
    assert [record["detail"] for record in records] == ["512 MiB, 2 CPUs: autoscaler"]
    told = [e["detail"] for e in where.daemon.records() if e.get("change") == "refused" and e["sandbox"]]
    assert len(told) == 1 and told[0].startswith("1100 MiB by autoscaler: this machine has no room")
    nobody = asyncio.to_thread(control.size_sandbox, "sbx_0000000000000000", 512, 1, "caller")
    assert await refused(nobody) == "unknown_sandbox"
