"""Which secrets an inspection looks for: all that we hold, or can fetch now, for a sandbox's policies."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from coatcheck.decision.policy import Policy, SecretRef
from coatcheck.inspection.residue import SHORTEST, Value, forms_of
from coatcheck.request.request_edits import secret_texts
from coatcheck.secrets import Secret, SecretMissing, SecretStore, SecretUnavailable

FETCH_SECONDS: Final = 4.0
"""For all of them together: what does not come in time is told as not checked."""
SERVED: Final = "(served before)"
"""Name of a value that a session was served and that none of its credentials has any more: it was rotated."""

UNAVAILABLE: Final = "it cannot be had now: the secret store, or the policy, is not there"


@dataclass(frozen=True, slots=True)
class Holdings:
    """What will be looked for, and what will not."""

    values: tuple[Value, ...] = field(repr=False)
    checked: Mapping[str, int]
    """Credential -> how many values of it."""
    not_checked: Mapping[str, str]
    """Credential -> why."""

    @property
    def unknown(self) -> bool:
        """Whether there may be a secret that we do not know: nothing can be said of it."""
        return UNAVAILABLE in self.not_checked.values()


async def collect(
    policies: Mapping[str, Policy | None], store: SecretStore, served: Collection[str]
) -> Holdings:
    """Every credential of the policies, whether the sandbox was granted it or not. On the store's loop.

    `served`: what answers to the sandbox are searched for, values from before a rotation included. None
    stands for a policy that is not in force any more: what it named is not known.

    Two policies may have different credentials of one name: both are looked for under it.
    """
    credentials = [c for policy in policies.values() if policy for c in policy.credentials.values()]
    fetched = await _fetch({c.secret for c in credentials}, store)
    texts: dict[str, set[str]] = {}
    not_checked = {f"policy {name}": UNAVAILABLE for name, policy in policies.items() if policy is None}
    for credential in credentials:
        secret = fetched[credential.secret]
        if isinstance(secret, str):
            not_checked[credential.name] = secret
            continue
        found = secret_texts(credential, secret)
        if not found:
            not_checked[credential.name] = f"its secret is not {credential.inject.form}"
        elif any(not _searchable(text) for text in found):
            not_checked[credential.name] = _why_not(found)
        texts.setdefault(credential.name, set()).update(text for text in found if _searchable(text))
    known: set[str] = set().union(*texts.values())
    earlier = set(served) - known
    if earlier:
        texts[SERVED] = {value for value in earlier if _searchable(value)}
    values = tuple(Value(name, text.encode()) for name in sorted(texts) for text in sorted(texts[name]))
    checked = {name: len(found) for name, found in texts.items() if found}
    return Holdings(values, checked, not_checked)


async def _fetch(refs: Collection[SecretRef], store: SecretStore) -> dict[SecretRef, Secret | str]:
    """Each secret, or why there is none."""

    async def fetch(ref: SecretRef) -> Secret | str:
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                return await store.fetch(ref)
        except SecretMissing:
            return "the secret store has no such secret"
        except (SecretUnavailable, TimeoutError):
            return UNAVAILABLE

    return dict(zip(refs, await asyncio.gather(*map(fetch, refs)), strict=True))


def _searchable(text: str) -> bool:
    return bool(forms_of(Value("", text.encode())))


def _why_not(texts: Iterable[str]) -> str:
    if any(len(text.encode()) < SHORTEST for text in texts):
        return f"it is shorter than {SHORTEST} bytes, and could occur anywhere by chance"
    return "it is too long to be searched for"
