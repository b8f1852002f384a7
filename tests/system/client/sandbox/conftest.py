"""One daemon and one sandbox for all tests of a file: what they do to it leaves no trace in the next."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from coatcheck.client.sandbox import Sandbox
from tests.sandboxes import Place, place, sandbox_in
from tests.upstreams import UpstreamTls


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def where(all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[Place]:
    async with place(all_output, upstream_tls) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(where: Place) -> AsyncIterator[Sandbox]:
    """With two identities, which hold different handles."""
    identities = [
        {"name": "agent", "credentials": ["openai"]},
        {"name": "tool", "credentials": ["anthropic"]},
    ]
    async with sandbox_in(where, identities=identities) as made:
        yield made
