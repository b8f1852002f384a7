"""The proxy under test, as a runner sees it: an address, a CA, handles; and, if it is ours, its records."""

import asyncio
import hashlib
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coatcheck.decision.session import Isolation
from coatcheck.secrets.memory import MemoryStore
from coatcheck.settings.daemon import Settings
from tests.corpus.schema import policies
from tests.corpus.world import World
from tests.daemon import Sandbox, TestDaemon
from tests.known_secrets import known_secret

CREDENTIALS = ("vendor", "second", "third")
ODD = "sk/odd+<\"&'>=~*-"
"""How a secret begins of which every writer escapes something."""
CALLERS = ("launcher", "operator", "auditor")


@dataclass(slots=True)
class Inside:
    """One sandbox: what it holds, and where its proxy is."""

    session: str
    address: tuple[str, int]
    ca: Path
    handles: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    foreign: Mapping[str, str] = field(default_factory=dict)
    """Handles of another live session of the same policy."""
    signing: tuple[str, Ed25519PrivateKey] | None = None
    """The key that the proxy signs handles with, and its name: for forgeries that only claims betray."""
    now: Callable[[], float] = time.time
    """The proxy's clock, Unix seconds."""
    control_port: int = 0
    """Of the control API, where it has one."""
    kin: Mapping[str, str] = field(default_factory=dict)
    """Handles of a parent, a sibling or a child of the session, as the case wants it."""
    parent: str = ""


class UnderTest(Protocol):
    """A proxy that cases are run against."""

    name: str
    secrets: Mapping[str, str]
    """By credential: the values that no sandbox may see."""

    async def open(self, policy: str, wanted: Mapping[str, Any]) -> Inside:
        """A new sandbox."""
        ...

    def mark(self) -> None:
        """Records from here on are the next case's."""
        ...

    def records(self) -> list[dict[str, Any]]:
        """What was recorded since `mark`; empty for proxies that record nothing which we can read."""
        ...


def secrets() -> dict[str, str]:
    """The run's secrets, by credential."""
    made = {name: known_secret(f"the corpus's {name}", prefix=f"sk-{name}-") for name in CREDENTIALS}
    return made | {"odd": known_secret("the corpus's odd one", prefix=ODD)}


def token_of(role: str) -> str:
    return f"a-token-of-the-corpus-for-its-{role}"


def grants() -> str:
    """The file of callers for daemons whose control API has a port."""
    return "".join(
        f'[[caller]]\nname = "{role}"\nrole = "{role}"\ntenants = ["acme"]\n'
        f'token_sha256 = "{hashlib.sha256(token_of(role).encode()).hexdigest()}"\n'
        + ('policies = ["vendor"]\nisolation = ["none"]\n' if role == "launcher" else "")
        for role in CALLERS
    )


class Coatcheck:
    """A daemon of ours, in the runner's own process, so that its checks can be switched off."""

    name = "coatcheck"

    def __init__(self, daemon: TestDaemon, policies: Path) -> None:
        self.daemon = daemon
        self.policies = policies
        self.as_written = {path.name: path.read_bytes() for path in policies.iterdir()}
        self.secrets: Mapping[str, str] = secrets()
        self._log = daemon.directory.audit / "audit.jsonl"
        self._offset = 0
        self._foreign: dict[str, Sandbox] = {}
        self._redirected: dict[str, Path] = {}

    async def open(self, policy: str, wanted: Mapping[str, Any]) -> Inside:
        if policy not in self._foreign:
            self._foreign[policy] = await self.daemon.sandbox(policy=policy, subject="another")
        foreign, wanted = self._foreign[policy], dict(wanted)
        kin, whose, child = None, wanted.pop("parent", None), wanted.pop("child", None)
        if whose == "own":
            kin = await self.daemon.sandbox(policy=policy)
            wanted["parent"] = parent = kin.session.id
            if lost := wanted.pop("without", None):
                self.daemon.state.revoke_where(lambda each: each.id == parent, lost, "the corpus")
        elif whose is not None:
            wanted |= {"parent": foreign.session.id, "subject": "another"}
            kin = await self.daemon.sandbox(policy=policy, **_as_asked(wanted))
        made = await self.daemon.sandbox(policy=policy, **_as_asked(wanted))
        if child is not None:
            kin = await self.daemon.sandbox(policy=policy, parent=made.session.id)
        keys = self.daemon.state.keys
        return Inside(
            made.session.id,
            made.address,
            self.daemon.trust.ca,
            made.handles,
            made.environment,
            foreign.handles,
            (keys.current.active_kid, keys.active),
            lambda: self.daemon.state.clock.now().wall,
            next((port for _, port in self.daemon.control.addresses), 0) if self.daemon.control else 0,
            kin.handles if kin is not None else {},
            str(wanted.get("parent", "")),
        )

    async def redirects_to(self, inside: Inside) -> Path:
        """The socket of redirected connections, beside the one for clients that know of their proxy."""
        listeners = self.daemon.listeners
        assert listeners is not None
        if inside.session not in self._redirected:
            self._redirected[inside.session] = await listeners.open_redirected(inside.session)
        return self._redirected[inside.session]

    def mark(self) -> None:
        self._offset = self._log.stat().st_size if self._log.exists() else 0

    def records(self) -> list[dict[str, Any]]:
        with self._log.open("rb") as file:
            file.seek(self._offset)
            return [json.loads(line) for line in file.read().splitlines()]


def _as_asked(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """A case's words for a session, as values."""
    made = dict(wanted)
    if "credentials" in made:
        made["credentials"] = frozenset(made["credentials"])
    if "isolation" in made:
        made["isolation"] = Isolation(made["isolation"])
    return made


class Coatchecks:
    """Daemons by their settings: most cases share the first."""

    def __init__(self, directory: Path, world: World) -> None:
        self._directory = directory
        self._world = world
        self._made: dict[str, Coatcheck] = {}
        self._stack = AsyncExitStack()

    async def of(self, settings: Mapping[str, Any]) -> Coatcheck:
        """The daemon with these settings, started if there is none yet."""
        key = json.dumps(settings, sort_keys=True)
        if key not in self._made:
            directory = self._directory / f"daemon{len(self._made)}"
            self._made[key] = await self._stack.enter_async_context(
                running(directory, self._world.ca, settings)
            )
        return self._made[key]

    async def close(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def running(
    directory: Path, upstream_ca: Path, settings: Mapping[str, Any]
) -> AsyncIterator[Coatcheck]:
    written = directory / "policies"
    written.mkdir(mode=0o755, parents=True)
    settings = dict(settings)
    wanted = settings.pop("policies", None)  # a few, for cases that have them read again and again
    for name, text in policies().items():
        if wanted is not None and name not in wanted:
            continue
        (written / f"{name}.yaml").write_text(text)
        (written / f"{name}.yaml").chmod(0o644)
    values = {f"memory:corpus/{name}#key": value for name, value in secrets().items()}
    with tempfile.TemporaryDirectory(prefix="cch-") as short:
        if "control_port" in settings:
            callers = directory / "grants.toml"
            callers.write_text(grants())
            callers.chmod(0o600)
            settings["control_grants"] = callers
        made = Settings(
            **{
                "state_dir": directory / "state",
                "runtime_dir": Path(short) / "run",
                "policy": written,
                "upstream_ca_file": upstream_ca,
                "drain_seconds": 0.0,
                **settings,
            }
        )
        daemon = TestDaemon(made, {"memory": MemoryStore(values)})
        await daemon.start()
        try:
            yield Coatcheck(daemon, written)
        finally:
            await daemon.stop()
            await asyncio.sleep(0)
