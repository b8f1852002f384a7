"""A real OpenBao for tests: import the fixture `bao` into a conftest."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coatcheck.secrets.embedded import EmbeddedVault
from tests.known_secrets import remember_secret


@contextmanager
def running_bao(log: Path) -> Iterator[EmbeddedVault]:
    """An OpenBao that lives between event loops: each test has a loop of its own."""
    with asyncio.Runner() as runner:
        start = EmbeddedVault.start(log=log)
        vault = runner.run(start.__aenter__())
        remember_secret("OpenBao's root token", vault.root_token)
        try:
            yield vault
        finally:
            runner.run(start.__aexit__(None, None, None))


@pytest.fixture(scope="session")
def bao(all_output: Path) -> Iterator[EmbeddedVault]:
    """One OpenBao for all tests that only need paths and roles of their own."""
    with running_bao(all_output / "openbao.log") as vault:
        yield vault
