"""`coatcheck sandbox`, asked by a user whose daemon runs in the test's own process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from coatcheck.client.sandbox import Sandbox
from tests.cli.transcript import Said, coatcheck
from tests.sandboxes import Place, place, sandbox_in
from tests.upstreams import UpstreamTls

NEW = ("sandbox", "run", "--backend", "namespace", "--tenant", "acme")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def where(all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[Place]:
    async with place(all_output, upstream_tls) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(where: Place) -> AsyncIterator[Sandbox]:
    async with sandbox_in(where) as made:
        yield made


@pytest.fixture
def asked(where: Place, tmp_path: Path) -> Callable[..., "asyncio.Future[Said]"]:
    """The command, while this loop's daemon serves it."""

    def ask(*arguments: str | Path, **options: str) -> "asyncio.Future[Said]":
        stdin = options.pop("stdin", "")
        env = {"COATCHECK_CONTROL_SOCKET": str(where.socket)} | options
        work = asyncio.to_thread(coatcheck, *arguments, cwd=tmp_path, env=env, stdin=stdin)
        return asyncio.ensure_future(work)

    return ask


type Ask = Callable[..., "asyncio.Future[Said]"]
