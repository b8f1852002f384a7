"""Picks the store that a reference names: `vault:…`, `file:…`, `memory:…`."""

from collections.abc import Callable, Collection, Mapping

from coatcheck.decision.policy import SecretRef
from coatcheck.secrets import Secret, SecretMissing, SecretStore, SecretUnavailable


class Stores:
    """A SecretStore over named ones. `failed` hears the `kind` of each read that gave nothing."""

    def __init__(
        self, by_name: Mapping[str, SecretStore], failed: Callable[[str], None] = lambda kind: None
    ) -> None:
        self.by_name = dict(by_name)
        self._failed = failed

    async def fetch(self, ref: SecretRef) -> Secret:
        try:
            return await self._store(ref).fetch(ref)
        except SecretUnavailable as failure:
            self._failed(failure.kind)
            raise

    async def history(self, ref: SecretRef, known: Collection[str]) -> tuple[Secret, ...]:
        try:
            return await self._store(ref).history(ref, known)
        except SecretMissing:
            return ()  # a store that nobody configured has no value
        except SecretUnavailable as failure:
            self._failed(failure.kind)
            raise

    def _store(self, ref: SecretRef) -> SecretStore:
        store = self.by_name.get(ref.store)
        if store is None:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise SecretMissing(
                f"{ref}: no store named {ref.store!r} is configured (configured: {known}); "
                "configure it in the settings or change the reference in the policy"
            )
        return store

    async def close(self) -> None:
        for store in self.by_name.values():
            await store.close()
