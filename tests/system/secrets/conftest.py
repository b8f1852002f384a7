"""What the tests of stores share: a real OpenBao, and stores on it."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from coatcheck.secrets.embedded import EmbeddedVault
from coatcheck.secrets.vault import VaultConfig, VaultStore
from coatcheck.secrets.vault_login import TokenLogin
from tests.bao import bao
from tests.secrets.conftest import write_file

__all__ = ["bao", "write_file"]

type MakeStore = Callable[..., VaultStore]


@pytest.fixture
async def make_store(bao: EmbeddedVault) -> AsyncIterator[MakeStore]:
    """`make_store(timeout_seconds=1.0, …)`: a store on `bao` with the root token, unless told otherwise."""
    stores: list[VaultStore] = []

    def make(**settings: Any) -> VaultStore:
        settings.setdefault("url", bao.url)
        settings.setdefault("login", TokenLogin(token=bao.root_token))
        stores.append(VaultStore(VaultConfig(**settings)))
        return stores[-1]

    yield make
    for store in stores:
        await store.close()
