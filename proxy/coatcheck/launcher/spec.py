"""In daemon and supervisor: defines what a supervisor is told, as JSON on its standard input. It holds
handles, so it is in no file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from coatcheck.decision.filesystem import Filesystem
from coatcheck.sandbox.limits import Limits
from coatcheck.sandbox.machine import MachineSpec
from coatcheck.sandbox.sandbox import Backend

MAX_BYTES = 4 * 1024 * 1024
"""A thousand handles with their variables."""
SOCKET: Final = "api.sock"
"""In the sandbox's directory: where its supervisor answers the daemon."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One user inside, with a session of its own: the host's side tells its connections from others'."""

    name: str
    uid: int
    session: str
    socket: Path
    """The session's proxy socket; `.t` and `.d` beside it take intercepted connections and DNS."""
    environment: Mapping[str, str] = field(repr=False)
    """Handles, proxy and trust, as paths inside."""
    ca: Path
    """On the host, as the next two: what the guest is given to trust."""
    bundle: Path
    java_truststore: Path


@dataclass(frozen=True, slots=True)
class SupervisorSpec:
    """One sandbox. Times are seconds."""

    id: str
    directory: Path
    """Its own, 0700; the supervisor removes it at the end."""
    lock: int
    """Descriptor of `directory/lock`, locked by the daemon: as long as it is open, somebody cares for it."""
    control: Path
    """The daemon's control socket."""
    backend: Backend
    machine: MachineSpec
    identities: tuple[Identity, ...]
    lease_seconds: float
    expires_at: float
    """Unix time."""
    idle_seconds: float | None
    limits: Limits
    ceiling: Limits
    """What it could have had here: for a caller that runs into a limit."""
    agent: Path | None
    """The guest's agent, where it is not in the image."""
    filesystem: Filesystem | None
    """Of the policy: around each command."""

    def identity(self, name: str) -> Identity | None:
        return next((each for each in self.identities if each.name == name), None)


_SPECS: Final = TypeAdapter(SupervisorSpec)


def dumps(spec: SupervisorSpec) -> bytes:
    """One line of JSON."""
    return dump(_SPECS, spec)


def loads(content: bytes) -> SupervisorSpec:
    """From our own daemon. ValueError when it is not a spec at all."""
    return load(_SPECS, content)


def dump[T](specs: TypeAdapter[T], spec: T) -> bytes:
    """One line of JSON."""
    return specs.dump_json(spec) + b"\n"


def load[T](specs: TypeAdapter[T], content: bytes) -> T:
    """ValueError when it is none, which quotes nothing of it: handles are in it."""
    try:
        return specs.validate_json(content)
    except ValidationError as error:
        places = (".".join(map(str, each["loc"])) for each in error.errors(include_input=False))
        raise ValueError(f"this is no sandbox's spec: {', '.join(places)}") from None
