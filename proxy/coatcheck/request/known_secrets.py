"""The values that a response is searched for: all that its tenant's policies could inject (I1).

Earlier values are included: those that the store still has, and those that were read since the start. None is
on disk. After a restart they are read again. `ready` says whether all of a tenant's are known, and `learn`
reads what is missing; until then none of its requests leaves, except under rules with `scrub: {off: …}`. How
these values may be written in a response is the matter of `decision.encodings` and `decision.readings`.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from coatcheck.decision.denial import Deny
from coatcheck.decision.injection import check_text
from coatcheck.decision.policy import Credential, Policy, SecretRef
from coatcheck.decision.scrub import Patterns, Sought
from coatcheck.decision.session import Session
from coatcheck.secrets import Secret, SecretDenied, SecretMissing, SecretUnavailable
from coatcheck.secrets.cache import CachedStore
from coatcheck.state.state import State

logger = logging.getLogger(__name__)

type Text = tuple[str, str]
"""A text that must not come back, and the reference of its secret."""

READ_AT_ONCE: Final = 32
"""References that one tenant's learning reads side by side: an eighth of what the store takes."""
RETRY_SECONDS: Final = 1.0
"""Between two attempts to read what could not be read, however many requests ask."""
_LATE: Final = 8
"""Texts that are searched for beside the compiled ones until those are compiled anew, which takes a thread
3.4 ms a text."""


class TooManySecrets(SecretUnavailable):
    """A tenant's policies have more values than answers are searched for."""


@dataclass(slots=True)
class _Known:
    """The values that were read for one reference."""

    values: dict[str, None] = field(default_factory=dict, repr=False)
    """As stored, in the order in which they were read."""
    versions: set[str] = field(default_factory=set)
    complete: bool = False
    """The store's earlier versions were read, too."""
    history: frozenset[str] = frozenset()
    """The versions that were known then: what is older needs no second look."""
    denied: bool = False
    """The store does not let the daemon read it. It cannot be injected either, so it keeps nobody waiting."""


@dataclass(slots=True)
class _Tenant:
    """One tenant. All of its responses are searched for the same texts."""

    policies: dict[str, Policy | None] = field(default_factory=dict)
    """By name, as they were when their credentials were noted."""
    credentials: dict[Credential, None] = field(default_factory=dict)
    """Whose secrets are looked for: those that a policy lost since stay."""
    learned: bool = False
    """All of it was read at least once."""
    look_at: float = float("inf")
    """When it is read again, beside the requests."""
    flight: asyncio.Task[None] | None = None
    failure: SecretUnavailable | None = None
    retry_at: float = 0.0
    """Until then the next request is told the same failure."""
    texts: frozenset[Text] = field(default_factory=frozenset, repr=False)
    counted: int = -1
    """Up to which of all changes `texts` is."""
    changes: int = -1
    """Up to which of all changes `patterns` is."""
    compiled: frozenset[Text] = field(default_factory=frozenset, repr=False)
    base: Patterns | None = None
    patterns: Patterns | None = None


class KnownSecrets:
    """Belongs to the plane's event loop. `heard` of the cache tells it every value that is read."""

    KEPT = 1024
    """Texts that answers are searched for, a tenant: earlier values included. A tenant
    with more is refused, as one that is not looked for would come back."""
    TENANTS = 10_000
    """As many as sessions may live. Of more, those that have none are forgotten first."""
    MINTED = 32
    """Signatures a session, the latest ones: a sandbox can have any number of them made, and each costs
    about 30 KiB (measured). One that has left the ring is still taken out of the answer to its own request.
    In other answers it shows: with a timestamp it soon counts no more; without one the linter warns."""
    COMPILED = 512
    """Compiled sets kept; tenants with the same secrets share one."""

    def __init__(self, state: State, store: CachedStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._store = store
        self._clock = clock
        self._known: dict[SecretRef, _Known] = {}
        self._tenants: dict[str, _Tenant] = {}
        self._changes = 0
        self._compiled: OrderedDict[frozenset[Text], Patterns] = OrderedDict()
        self._minted: dict[str, OrderedDict[str, Patterns]] = {}
        self._joined: dict[str, tuple[Patterns | None, Patterns, Patterns]] = {}
        store.heard = self.heard

    # --- before a request leaves --------------------------------------------------------------------

    def ready(self, session: Session) -> bool:
        """Whether everything is known that the session's answers must be searched for. Reads it again in
        time, beside the requests."""
        tenant = self._tenants.get(session.tenant)
        return tenant is not None and self._is_current(tenant, session)

    async def learn(self, session: Session) -> None:
        """Read what is not known yet.

        Raises:
            SecretUnavailable: it cannot be read, or is more than is searched for.
        """
        tenant = self._tenants.get(session.tenant)
        if tenant is None:
            tenant = self._tenants[session.tenant] = _Tenant()
            self._make_room(session.tenant)
        while not self._is_current(tenant, session):
            if tenant.failure is not None and self._clock() < tenant.retry_at:
                raise type(tenant.failure)(*tenant.failure.args)
            await asyncio.shield(self._learning(session.tenant, tenant))

    def heard(self, secret: Secret) -> None:
        """The store gave this value: from now on it is looked for wherever its reference is."""
        known = self._known.setdefault(secret.ref, _Known())
        if secret.version:
            if secret.version not in known.versions and known.versions:
                known.complete = False  # there may have been others between them
            known.versions.add(secret.version)
        if secret.reveal() not in known.values:
            known.values[secret.reveal()] = None
            self._changes += 1
        if known.denied:  # allowed since: its earlier versions are read before the next request leaves
            known.denied = False
            for tenant in self._tenants.values():
                tenant.learned = tenant.learned and all(map(self._is_complete, tenant.credentials))

    def covers(self, session: Session, texts: Iterable[Text]) -> bool:
        """Whether each of `texts`, which are about to be injected, is looked for in the session's answers."""
        tenant = self._tenants.get(session.tenant)
        found = self._texts(tenant) if tenant is not None else frozenset()
        return len(found) <= self.KEPT and found.issuperset(texts)

    # --- while an answer comes back -----------------------------------------------------------------

    def patterns(self, session: Session) -> Patterns | None:
        """What must not come back, as of now; None when the tenant has no secrets."""
        tenant = self._tenants.get(session.tenant)
        if tenant is not None:
            self._is_current(tenant, session)  # a policy that changed meanwhile is read beside
        base = self._patterns(tenant) if tenant is not None else None
        ring = self._minted.get(session.id)
        if not ring:
            return base
        known = self._joined.get(session.id)
        recent = known[1] if known is not None else Patterns.together(tuple(ring.values()))
        if known is None or known[0] is not base:
            both = base.beside(recent) if base is not None else recent
            known = self._joined[session.id] = (base, recent, both)
        return known[2]

    def add_minted(self, session_id: str, value: str) -> Patterns:
        """Look for `value`, which was made for one request, in all answers to the session while it is among
        the latest. Returns its own patterns: the answer to that request is searched for them to its end."""
        ring = self._minted.setdefault(session_id, OrderedDict())
        known = ring.get(value)
        if known is not None:  # the same request again: nothing new to look for
            ring.move_to_end(value)
            return known
        made = ring[value] = Patterns.small(value)
        if len(ring) > self.MINTED:
            ring.popitem(last=False)
        self._joined.pop(session_id, None)
        return made

    def forget(self, session_id: str) -> None:
        """The session is over. Its tenant's secrets are still looked for in others'."""
        self._minted.pop(session_id, None)
        self._joined.pop(session_id, None)

    def texts(self, tenant: str) -> frozenset[str]:
        """All that the tenant's answers are searched for now, for inspections."""
        known = self._tenants.get(tenant)
        return frozenset(text for text, _ in self._texts(known)) if known is not None else frozenset()

    # --- learning -----------------------------------------------------------------------------------

    def _is_current(self, tenant: _Tenant, session: Session) -> bool:
        policy = self._state.policies.get(session.policy)
        if not tenant.learned or tenant.policies.get(session.policy) is not policy:
            self._note(tenant, (session.policy,))
            tenant.learned = tenant.learned and all(self._is_complete(each) for each in tenant.credentials)
        if self._clock() >= tenant.look_at:
            tenant.look_at = self._clock() + self._store.ttl
            self._learning(session.tenant, tenant)
        return tenant.learned

    def _is_complete(self, credential: Credential) -> bool:
        known = self._known.get(credential.secret)
        return known is not None and (known.complete or known.denied)

    def _note(self, tenant: _Tenant, names: Iterable[str]) -> None:
        """Look for the secrets of these policies, as they are now."""
        for name in names:
            policy = self._state.policies.get(name)
            if policy is None or tenant.policies.get(name) is policy:
                continue
            tenant.policies[name] = policy
            tenant.credentials.update((each, None) for each in policy.credentials.values() if each.scrub)
            tenant.changes = tenant.counted = -1

    def _learning(self, name: str, tenant: _Tenant) -> asyncio.Task[None]:
        """One at a time; it leaves its failure to those who wait for it."""
        if tenant.flight is None or tenant.flight.done():
            tenant.flight = asyncio.get_running_loop().create_task(self._learn(name, tenant))
            tenant.flight.add_done_callback(_look_at_failure)
        return tenant.flight

    async def _learn(self, name: str, tenant: _Tenant) -> None:
        try:
            await self._read_all(name, tenant)
            tenant.failure = None
        except SecretUnavailable as failure:
            tenant.failure, tenant.retry_at = failure, self._clock() + RETRY_SECONDS
            raise

    async def _read_all(self, name: str, tenant: _Tenant) -> None:
        self._note(tenant, await asyncio.to_thread(_policies_of, name, self._state))
        turns = asyncio.Semaphore(READ_AT_ONCE)
        references = {credential.secret for credential in tenant.credentials}
        read = await asyncio.gather(*(self._read(ref, turns) for ref in references), return_exceptions=True)
        failures = [each for each in read if isinstance(each, BaseException)]
        if failures:
            raise failures[0]
        texts = self._texts(tenant)
        if len(texts) > self.KEPT:
            raise TooManySecrets(
                f"the policies of tenant {name} have {len(texts)} values to search answers for, and the limit"
                f" is {self.KEPT}: divide the work among several tenants"
            )
        await self._compile(tenant, texts)
        tenant.learned = all(map(self._is_complete, tenant.credentials))
        tenant.look_at = self._clock() + self._store.ttl

    async def _read(self, ref: SecretRef, turns: asyncio.Semaphore) -> None:
        """The current value, and those before it that are not known yet. One that the store does not have, no
        more, or not for this daemon says nothing and keeps nobody waiting."""
        async with turns:
            known = self._known.setdefault(ref, _Known())
            try:
                try:
                    self.heard(await self._store.fetch(ref))
                except SecretMissing:
                    pass
                if not known.complete:
                    # Also of one that was deleted on purpose: what it was before may have been served.
                    for secret in await self._store.history(ref, known.history):
                        self.heard(secret)
                    known.complete, known.history = True, frozenset(known.versions)
                known.denied = False
            except SecretDenied as denied:
                if not known.denied:
                    logger.warning("responses are not searched for %s: %s", ref, denied)
                known.denied = True

    def _make_room(self, kept: str) -> None:
        if len(self._tenants) <= self.TENANTS:
            return
        living = {session.tenant for session in self._state.sessions.by_id.values()} | {kept}
        for name in [name for name in self._tenants if name not in living]:
            del self._tenants[name]
        used = {credential.secret for each in self._tenants.values() for credential in each.credentials}
        for ref in [ref for ref in self._known if ref not in used]:
            del self._known[ref]

    # --- what is looked for -------------------------------------------------------------------------

    def _texts(self, tenant: _Tenant) -> frozenset[Text]:
        if tenant.counted != self._changes:
            tenant.counted = self._changes
            tenant.texts = frozenset(
                text
                for credential in tenant.credentials
                if (known := self._known.get(credential.secret)) is not None
                for text in texts_of(credential, known.values)
            )
        return tenant.texts

    def _patterns(self, tenant: _Tenant) -> Patterns | None:
        if tenant.changes == self._changes:
            return tenant.patterns
        tenant.changes = self._changes
        texts = self._texts(tenant)
        late = texts - tenant.compiled
        if len(late) > _LATE:
            self._take(tenant, texts, self._make(texts))
        elif late:
            recent = Patterns.together(tuple(Patterns.small(text, name) for text, name in late))
            tenant.patterns = tenant.base.beside(recent) if tenant.base is not None else recent
            tenant.look_at = self._clock()  # compiled with the others, beside the requests
        return tenant.patterns

    async def _compile(self, tenant: _Tenant, texts: frozenset[Text]) -> None:
        """In a thread: a hundred secrets take 0.3 s, in which others' requests go on."""
        if texts != tenant.compiled:
            self._take(tenant, texts, await asyncio.to_thread(self._make, texts))

    def _take(self, tenant: _Tenant, texts: frozenset[Text], made: Patterns) -> None:
        tenant.compiled, tenant.base = texts, made
        tenant.patterns = made or None
        tenant.changes = -1
        self._compiled[texts] = made
        if len(self._compiled) > self.COMPILED:
            self._compiled.popitem(last=False)

    def _make(self, texts: frozenset[Text]) -> Patterns:
        known = self._compiled.get(texts)
        return known or Patterns.of([Sought(name, text) for text, name in sorted(texts)])


def texts_of(credential: Credential, values: Iterable[str]) -> Iterator[Text]:
    """What of the stored values may not come back. Those that no injection takes were never sent."""
    for injector in credential.injectors:
        for value in values:
            for text in injector.private(value):
                if not isinstance(check_text(text, scrub=True), Deny):
                    yield text, str(credential.secret)


def _policies_of(tenant: str, state: State) -> set[str]:
    """Of all its sessions, also of those that are over and not forgotten yet. In any thread."""
    return {session.policy for session in state.sessions.by_id.values() if session.tenant == tenant}


def _look_at_failure(task: "asyncio.Task[None]") -> None:
    """Somebody waits for it, or the next request tries again."""
    failure = task.exception() if not task.cancelled() else None
    if failure is not None and not isinstance(failure, SecretUnavailable):
        logger.error("a tenant's secrets could not be read: %s", type(failure).__name__)
