"""What the tests of stores share: a real OpenBao, and stores on it."""

import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from coatcheck.decision.policy import SecretRef
from coatcheck.secrets import SecretUnavailable
from coatcheck.secrets.embedded import EmbeddedVault
from coatcheck.secrets.vault import VaultConfig, VaultStore
from coatcheck.secrets.vault_login import TokenLogin
from tests.bao import bao

__all__ = ["bao"]

type MakeStore = Callable[..., VaultStore]


def ref(path: str, field: str = "api_key", mount: str = "secret") -> SecretRef:
    return SecretRef("vault", mount, path, field)


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


@pytest.fixture
def write_file(tmp_path: Path) -> Callable[..., Path]:
    """`write_file(name, text, mode=0o600)`: a file of that mode."""

    def write(name: str, text: str, mode: int = 0o600) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    return write


def assert_tells_nothing(failure: BaseException, *secrets: str) -> None:
    """Neither the exception nor anything that hangs on it holds one of the secrets."""
    text = "".join(traceback.format_exception(failure)) + repr(failure) + repr(vars(failure))
    assert not [name for name in secrets if name in text]
    seen = failure.__context__ or failure.__cause__
    assert seen is None or isinstance(seen, SecretUnavailable)
