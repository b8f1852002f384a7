"""The router over named stores."""

import pytest

from coatcheck.decision.policy import SecretRef
from coatcheck.secrets import SecretMissing
from coatcheck.secrets.memory import MemoryStore
from coatcheck.secrets.router import Stores


async def test_the_reference_names_its_store() -> None:
    """Two stores with the same path: the name before the colon decides."""
    stores = Stores(
        {"memory": MemoryStore({"memory:a/b#c": "1"}), "other": MemoryStore({"other:a/b#c": "2"})}
    )
    assert (await stores.fetch(SecretRef("memory", "a", "b", "c"))).reveal() == "1"
    assert (await stores.fetch(SecretRef("other", "a", "b", "c"))).reveal() == "2"


async def test_an_unknown_store_is_missing_and_the_message_helps() -> None:
    """It names the stores that there are, and what to do."""
    stores = Stores({"memory": MemoryStore({})})
    with pytest.raises(SecretMissing, match=r"'vault' is configured \(configured: memory\); configure it"):
        await stores.fetch(SecretRef("vault", "a", "b", "c"))


async def test_close_closes_every_store() -> None:
    """Each store forgets."""
    memory = MemoryStore({"memory:a/b#c": "1"})
    await Stores({"memory": memory}).close()
    with pytest.raises(SecretMissing):
        await memory.fetch(SecretRef("memory", "a", "b", "c"))
