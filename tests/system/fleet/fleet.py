"""Members of a fleet in one process, each with a state of its own, on one real PostgreSQL."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from coatcheck.decision.denial import Reason
from coatcheck.decision.message import Origin, OriginClass
from coatcheck.decision.session import Session
from coatcheck.fleet.member import Member, open_state
from coatcheck.settings.daemon import Settings
from coatcheck.state import NewSession, State
from coatcheck.telemetry.events import DaemonEvent, Event, SessionEvent
from tests.state.house import POLICIES, counts, reason
from tests.system.fleet.postgres_server import PASSWORD, PostgresServer

PATIENCE = 30.0
"""Seconds for what takes milliseconds on an idle machine."""


def until(
    what: Callable[..., bool], *about: object, why: Callable[[], str] = str, patience: float = PATIENCE
) -> float:
    """Wait for a condition; how many seconds it took."""
    began = time.monotonic()
    while not what(*about):
        assert time.monotonic() - began < patience, f"it did not come true {why()}"
        time.sleep(0.002)
    return time.monotonic() - began


@dataclass
class Daemon:
    """One member, as far as the state goes."""

    settings: Settings
    directory: Path
    events: list[Event] = field(default_factory=list)
    seen_version: int | None = None
    """Of the state, in the audit log."""

    state: State = field(init=False)
    member: Member = field(init=False)
    running: bool = False

    def start(self) -> "Daemon":
        sessions = self.directory / "sessions"
        self.state = open_state(self.settings, sessions, self.events.append, self.seen_version)
        self.state.swap_policies(POLICIES)
        self.member = Member(self.settings, self.state, self.events.append)
        self.running = True
        self.member.follower.start()
        return self

    def stop(self) -> None:
        if self.running:
            self.running = False
            self.member.leave()
            self.state.close()

    @property
    def hears(self) -> bool:
        return self.state.stale(self.state.clock.now()) is None

    def stale(self) -> str:
        """Why it refuses everything; empty while it does not."""
        denied = self.state.stale(self.state.clock.now())
        return denied.detail if denied is not None else ""

    def knows(self, session: Session) -> bool:
        return session.id in self.state.sessions.by_id

    def refuses(self, session: Session) -> Reason | None:
        """Why a connection of the session would be refused here; None when it would not."""
        denied = self.state.stale(self.state.clock.now())
        return denied.reason if denied is not None else reason(self.state, session)

    def counts(self, session: Session, handle: str) -> Reason | None:
        return counts(self.state, session, handle)

    def told(self) -> list[str]:
        return [event.what for event in self.events if isinstance(event, DaemonEvent)]

    def changes(self, session: Session) -> list[str]:
        found = (event for event in self.events if isinstance(event, SessionEvent))
        return [event.change.value for event in found if event.session == session.id]

    @property
    def incarnation(self) -> int:
        replica = self.state.replica
        assert replica is not None
        return replica.position.incarnation if replica.position is not None else 0

    @property
    def rev(self) -> int:
        """Up to here it has applied what was committed."""
        replica = self.state.replica
        assert replica is not None
        return replica.position.rev if replica.position is not None else -1


@dataclass
class Fleet:
    server: PostgresServer
    directory: Path
    key: Path
    defaults: dict[str, object]
    daemons: list[Daemon] = field(default_factory=list)

    def daemon(
        self,
        *,
        name: str = "",
        wait: bool = True,
        more: Mapping[str, object] | None = None,
        **settings: object,
    ) -> Daemon:
        """One more member, which hears the others. `more`: settings, too."""
        directory = self.directory / (name or f"daemon-{len(self.daemons)}")
        wanted = {
            "shared_state": self.server.url,
            "shared_state_key": self.key,
            "shared_state_password_file": self.password(),
        }
        made = Settings(state_dir=directory, **(wanted | self.defaults | dict(more or {}) | settings))  # type: ignore[arg-type]
        daemon = Daemon(made, directory).start()
        self.daemons.append(daemon)
        if wait:
            until(lambda: daemon.hears, why=daemon.stale)
        return daemon

    def password(self) -> Path:
        file = self.directory / "password"
        if not file.exists():
            file.write_text(PASSWORD)
            file.chmod(0o600)
        return file

    def restart(self, daemon: Daemon, *, wait: bool = True, **settings: object) -> Daemon:
        daemon.stop()
        self.daemons.remove(daemon)
        return self.daemon(name=daemon.directory.name, wait=wait, more=settings)


def new_key(file: Path) -> Path:
    file.write_text("0123456789abcdef" * 4 if not file.name.startswith("other") else "fedcba9876543210" * 4)
    file.chmod(0o600)
    return file


@contextmanager
def fleet(server: PostgresServer, directory: Path, **settings: object) -> Iterator[Fleet]:
    directory.mkdir(exist_ok=True)
    made = Fleet(server, directory, new_key(directory / "key"), dict(settings))
    try:
        yield made
    finally:
        for daemon in made.daemons:
            daemon.stop()


def wanted(value: str = "issuer|pod-1") -> NewSession:
    """A session that any member may see: its origin is a token, not a socket of one of them."""
    return NewSession(
        "acme",
        "agent-7",
        "agents",
        origin=Origin(OriginClass.TOKEN, value),
        credentials=frozenset({"openai"}),
    )
