"""The world of these tests: one for a module."""

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.exhaustive.fail_closed.world import World, running_world
from tests.upstreams import UpstreamTls


@pytest.fixture(scope="module")
def quiet() -> Iterator[None]:
    """Thousands of failures on purpose, each with its traceback: nobody reads those."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(
    quiet: None, all_output: Path, upstream_tls: UpstreamTls, request: pytest.FixtureRequest
) -> AsyncIterator[World]:
    async with running_world(all_output / request.node.path.stem, upstream_tls) as running:
        yield running
