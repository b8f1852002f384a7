"""The memory store."""

import pytest

from coatcheck.decision.policy import SecretRef
from coatcheck.secrets import SecretMissing
from coatcheck.secrets.memory import MemoryStore

REF = SecretRef("memory", "dev", "openai", "api_key")


async def test_it_gives_what_it_was_given() -> None:
    """By the reference's text, exactly; nothing else, and nothing after close."""
    store = MemoryStore({"memory:dev/openai#api_key": "sk-1", "memory:dev/empty#x": ""})
    assert (await store.fetch(REF)).reveal() == "sk-1"
    for absent in (SecretRef("memory", "dev", "openai", "other"), SecretRef("memory", "dev", "empty", "x")):
        with pytest.raises(SecretMissing, match="not among"):
            await store.fetch(absent)
    await store.close()
    with pytest.raises(SecretMissing):
        await store.fetch(REF)
