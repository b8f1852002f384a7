"""Whether the secrets that credentials name can be had and injected, before a request depends on it.

What is learnt of a secret is that, and nothing else.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from coatcheck.decision.policy import Credential, SecretRef
from coatcheck.decision.substitute import check_secret
from coatcheck.secrets import SecretDenied, SecretMissing, SecretStore, SecretUnavailable

AT_ONCE: Final = 8
"""Secrets that are read side by side: half of the threads that the Vault store has."""
SETTINGS: Final = {"vault": "COATCHECK_VAULT_URL", "file": "COATCHECK_SECRETS_DIR"}
"""What configures a store, by its name in policies."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a store, or one credential, cannot be used now. Holds no secret."""

    store: str
    credential: str
    """Empty: the whole store."""
    message: str
    hint: str
    absent: bool = False
    """There is nothing for us: not stored, not allowed, no such store. Where a policy is larger than what its
    reader has, as the sample is, that is no mistake."""


async def logins(stores: Mapping[str, SecretStore]) -> list[Trouble]:
    """The stores that cannot be logged in to."""
    found = []
    for name, store in sorted(stores.items()):
        # Not by its class: without Vault, nothing imports Vault's client library.
        if (ready := getattr(store, "ready", None)) is not None:
            try:
                await ready()
            except SecretUnavailable as error:
                found.append(Trouble(name, "", str(error), error.hint))
    return found


async def troubles(
    credentials: Iterable[Credential], stores: Mapping[str, SecretStore], source: SecretStore
) -> list[Trouble]:
    """What is wrong with `stores`, then with credentials whose store answers. `source` reads from them."""
    needed = tuple(credentials)
    named = {each.secret.store for each in needed}
    found = await logins({name: store for name, store in stores.items() if name in named})
    silent = {each.store for each in found}
    wanted = [each for each in needed if each.secret.store not in silent]
    at_once = asyncio.Semaphore(AT_ONCE)

    async def look(credential: Credential) -> Trouble | None:
        async with at_once:
            return await _trouble(credential, stores, source)

    for trouble in await asyncio.gather(*(look(each) for each in wanted)):
        if trouble is not None and trouble not in found:
            found.append(trouble)
    return found


async def _trouble(
    credential: Credential, stores: Mapping[str, SecretStore], source: SecretStore
) -> Trouble | None:
    ref, name = credential.secret, credential.name
    if ref.store not in stores:
        setting = SETTINGS.get(ref.store)
        hint = f"set {setting}, or name another store in the policy" if setting else "correct the policy"
        return Trouble(ref.store, name, f"{ref}: the store {ref.store} is not configured", hint, absent=True)
    try:
        secret = await source.fetch(ref)
    except SecretMissing as error:
        return Trouble(ref.store, name, str(error), error.hint or how_to_put(ref), absent=True)
    except SecretDenied as error:
        return Trouble(ref.store, name, str(error), error.hint, absent=True)
    except SecretUnavailable as error:
        if error.kind == "unreachable":
            return Trouble(ref.store, "", str(error), error.hint)
        return Trouble(ref.store, name, str(error), error.hint or "coatcheck doctor looks closer")
    if (refused := check_secret(credential, secret.reveal())) is not None:
        return Trouble(ref.store, name, f"{ref} cannot be injected: {refused.detail}", how_to_put(ref))
    return None


def how_to_put(ref: SecretRef) -> str:
    """The command that stores a secret where `ref` looks for it."""
    if ref.store == "file":
        return f"put it into {ref.mount}/{ref.path} below COATCHECK_SECRETS_DIR, mode 0600"
    return f'printf %s "$SECRET" | vault kv put -mount={ref.mount} {ref.path} {ref.field}=-'
