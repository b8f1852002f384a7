"""A state on disk with a clock that the test turns, and everything that it reported."""

from dataclasses import dataclass, field
from pathlib import Path

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.handle import judge
from coatcheck.decision.message import Peer
from coatcheck.decision.policy import Credential, Policy, SecretRef, Shape
from coatcheck.decision.session import Session, identify
from coatcheck.injectors.header import HeaderInjection
from coatcheck.state import Clock, NewSession, State, StateSettings
from coatcheck.telemetry.events import Event, SessionChange, SessionEvent

WALL = 1_800_000_000.0


@dataclass
class Time:
    """Both clocks, in the test's hands."""

    wall: float = WALL
    monotonic: float = 5_000.0

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds

    def clock(self) -> Clock:
        return Clock(wall=lambda: self.wall, monotonic=lambda: self.monotonic)


@dataclass
class House:
    """Opens and reopens a state in one directory."""

    directory: Path
    time: Time = field(default_factory=Time)
    events: list[Event] = field(default_factory=list)
    opened: list[State] = field(default_factory=list)

    def open(self, settings: StateSettings | None = None, seen_version: int | None = None) -> State:
        state = State.open(
            self.directory,
            emit=self.events.append,
            settings=settings,
            clock=self.time.clock(),
            seen_version=seen_version,
        )
        state.swap_policies(POLICIES)
        self.opened.append(state)
        return state

    def restart(
        self,
        state: State,
        *,
        down: float = 0.0,
        seen_version: int | None = None,
        settings: StateSettings | None = None,
    ) -> State:
        """Stop and start again; the monotonic clock of the new run has nothing to do with the old one's."""
        state.close()
        self.opened.remove(state)
        self.time.wall += down
        self.time.monotonic = 3.0
        return self.open(settings, seen_version=seen_version)

    def changes(self) -> list[SessionChange]:
        return [event.change for event in self.events if isinstance(event, SessionEvent)]


def credential(name: str, shape: Shape | None = None) -> Credential:
    ref = SecretRef("memory", "secret", name, "key")
    return Credential(name, ref, (), HeaderInjection("authorization"), env=name.upper(), shape=shape)


POLICIES = {
    "agents": Policy(
        "agents",
        "security",
        "0" * 64,
        {
            "openai": credential("openai"),
            "anthropic": credential("anthropic", Shape("sk-ant-")),
            "github": credential("github", Shape("ghp_", 36)),
        },
    ),
    "weak": Policy("weak", "security", "1" * 64, {"short": credential("short", Shape("ghp_", 8))}),
}
WANTED = NewSession("acme", "agent-7", "agents", credentials=frozenset({"openai"}))


def reason(state: State, session: Session) -> Reason | None:
    """Why a connection on the session's origin is refused now; None when it is not."""
    found = identify(Peer("l", (session.origin,)), state.sessions.by_origin, state.clock.now())
    return found.reason if isinstance(found, Deny) else None


def counts(state: State, session: Session, handle: str) -> Reason | None:
    """Why the handle does not count on the session's own origin now; None when it does."""
    refused = reason(state, session)
    if refused is not None:
        return refused
    claims = state.genuine.claims_of(handle)
    if isinstance(claims, Deny):
        return claims.reason
    credential = POLICIES["agents"].credentials[claims.cred]
    by_id = state.sessions.by_id
    denied = judge(claims, by_id[session.id], credential, state.clock.now(), by_id)
    return denied.reason if denied is not None else None
