"""Picks the store that a reference names: `vault:…`, `file:…`, `memory:…`."""

from collections.abc import Mapping

from coatcheck.decision.policy import SecretRef
from coatcheck.stores import Secret, SecretMissing, SecretStore


class Stores:
    """A SecretStore over named ones."""

    def __init__(self, by_name: Mapping[str, SecretStore]) -> None:
        self._by_name = dict(by_name)

    async def fetch(self, ref: SecretRef) -> Secret:
        store = self._by_name.get(ref.store)
        if store is None:
            known = ", ".join(sorted(self._by_name)) or "none"
            raise SecretMissing(
                f"{ref}: no store named {ref.store!r} is configured (configured: {known}); "
                "configure it in the settings or change the reference in the policy"
            )
        return await store.fetch(ref)

    async def close(self) -> None:
        for store in self._by_name.values():
            await store.close()
