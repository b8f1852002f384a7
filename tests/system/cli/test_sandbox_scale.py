"""`coatcheck sandbox scale`: what it says when there is nothing to change, or nothing that can be. That it
works is shown on a microVM (e2e/test_a_sandbox_grows_for_a_build_and_shrinks_after_it.py)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from coatcheck.cli.sandbox_scale import described
from tests.cli.transcript import Said, coatcheck
from tests.sandboxes import Place, place, sandbox_in
from tests.upstreams import UpstreamTls

pytestmark = [pytest.mark.needs_debian("bwrap", "runc"), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def where(all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[Place]:
    async with place(all_output, upstream_tls) as running:
        yield running


async def ask(where: Place, cwd: Path, *words: str) -> Said:
    env = {"COATCHECK_CONTROL_SOCKET": str(where.socket)}
    return await asyncio.to_thread(coatcheck, "sandbox", *words, cwd=cwd, env=env)


async def test_what_cannot_be_resized_says_so(where: Place, tmp_path: Path) -> None:
    """When it is created, and when it runs; and a size has to be given."""
    wild = ("run", "--backend", "namespace", "--tenant", "acme", "--max-memory", "2048", "--", "true")
    said = await ask(where, tmp_path, *wild)
    assert said.code == 125 and "backend has one size" in said.err and "--max-memory" in said.err
    async with sandbox_in(where) as made:
        said = await ask(where, tmp_path, "scale", made.id, "--memory", "2048")
        assert said.code == 3 and "this sandbox has one size" in said.err and "hint:" in said.err
        said = await ask(where, tmp_path, "scale", made.id)
        assert said.code == 2 and "nothing to change" in said.err


def test_a_range_is_one_line() -> None:
    """For `sandbox show`."""
    elastic = {
        "min_memory_mib": 1024,
        "max_memory_mib": 16384,
        "min_cpus": 1,
        "max_cpus": 4,
        "scaling": "inside",
        "autoscale": None,
    }
    assert described(elastic) == "1024 to 16384 MiB, 1 to 4 CPUs"
    told = described(elastic | {"scaling": "outside", "autoscale": {"up_percent": 75}})
    assert told == "1024 to 16384 MiB, 1 to 4 CPUs, automatic, not from inside"
