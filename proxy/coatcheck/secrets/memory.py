"""Secrets given at start: `memory:mount/path#field`. For `coatcheck dev`, embedding and tests."""

from collections.abc import Collection, Mapping

from coatcheck.decision.policy import SecretRef
from coatcheck.secrets import Secret, SecretMissing


class MemoryStore:
    """A SecretStore over a dict from reference text (`memory:mount/path#field`) to value."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._secrets = dict(secrets)

    async def fetch(self, ref: SecretRef) -> Secret:
        value = self._secrets.get(str(ref))
        if not value:
            raise SecretMissing(f"{ref} is not among the secrets given at start")
        return Secret(ref, value)

    async def history(self, ref: SecretRef, known: Collection[str]) -> tuple[Secret, ...]:
        """The one value that there is: what is given at start does not change."""
        try:
            return (await self.fetch(ref),)
        except SecretMissing:
            return ()

    async def close(self) -> None:
        self._secrets.clear()
