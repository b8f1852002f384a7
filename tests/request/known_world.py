"""A tenant's secrets around a real state and cache, over a store with versions that the test sets."""

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import override

import pytest

from coatcheck.decision.policy import SecretRef
from coatcheck.decision.scrub import scrub_bytes
from coatcheck.decision.session import Session
from coatcheck.policy import load_policy
from coatcheck.request.known_secrets import KnownSecrets
from coatcheck.secrets import Secret, SecretDenied, SecretMissing, SecretUnavailable
from coatcheck.secrets.cache import CachedStore
from coatcheck.secrets.memory import MemoryStore
from coatcheck.state.sessions import NewSession, StateSettings
from coatcheck.state.state import State
from tests.known_secrets import known_secret
from tests.secrets.clock import Clock

OLD, NEW, OTHER = (known_secret(f"known {name}") for name in ("before", "after", "other"))

ONE = """
version: 1
owner: tests
credentials:
  {name}:
    secret: memory:secret/{name}#key
    hosts: [{name}.example.org]
    inject: {{header: Authorization, value: "Bearer {{secret}}"}}
rules:
  - {{name: calls, hosts: [{name}.example.org], methods: [GET], credentials: [{name}]}}
"""


@dataclass
class Shelf(MemoryStore):
    """A store with versions, as KV has them; what is set to fail fails."""

    versions: dict[str, list[str]] = field(default_factory=dict)
    failing: bool = False
    denied: set[str] = field(default_factory=set)
    asked: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    @override
    async def fetch(self, ref: SecretRef) -> Secret:
        if self.failing:
            raise SecretUnavailable("sealed")
        if ref.path in self.denied:
            raise SecretDenied("permission denied")
        values = self.versions.get(ref.path)
        if not values:
            raise SecretMissing("none")
        return Secret(ref, values[-1], str(len(values)))

    @override
    async def history(self, ref: SecretRef, known: Collection[str]) -> tuple[Secret, ...]:
        if self.failing:
            raise SecretUnavailable("sealed")
        if ref.path in self.denied:
            raise SecretDenied("permission denied")
        self.asked.append((ref.path, tuple(sorted(known))))
        found = []
        for number, value in reversed(list(enumerate(self.versions.get(ref.path, ()), 1))):
            if str(number) in known:
                break
            found.append(Secret(ref, value, str(number)))
        return tuple(found)


@dataclass
class World:
    state: State
    shelf: Shelf
    clock: Clock
    store: CachedStore
    known: KnownSecrets

    def open(self, tenant: str = "acme", policy: str = "one", parent: str | None = None) -> Session:
        return self.state.open_session(NewSession(tenant, "agent", policy, parent=parent), "test")[0]

    def masked(self, session: Session, text: str) -> str:
        patterns = self.known.patterns(session)
        return scrub_bytes(patterns, text.encode())[0].decode() if patterns else text

    async def learned(self, session: Session) -> Session:
        await self.known.learn(session)
        return session

    async def settled(self, session: Session) -> None:
        """What is read beside the requests has been read."""
        self.known.ready(session)
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    state = State.open(
        tmp_path / "sessions", emit=lambda event: None, settings=StateSettings(retain_closed=0.0)
    )
    state.swap_policies({name: load_policy(name, ONE.format(name=name).encode()) for name in ("one", "two")})
    clock = Clock()
    shelf = Shelf(versions={"one": [OLD, NEW], "two": [OTHER]})
    store = CachedStore(shelf, ttl=60.0, clock=clock)
    yield World(state, shelf, clock, store, KnownSecrets(state, store, clock))
    state.close()
