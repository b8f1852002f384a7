"""A real daemon in the test's own loop, in front of the demo's real upstreams."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coatcheck.certificates.client_environment import environment, proxy_variables, trust_variables
from coatcheck.daemon import Daemon
from coatcheck.decision.session import Session
from coatcheck.secrets import SecretStore
from coatcheck.secrets.memory import MemoryStore
from coatcheck.settings.daemon import Settings
from coatcheck.state.issued import MintedHandle
from coatcheck.state.sessions import NewSession


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A session with its own loopback port, as a test's client sees it."""

    session: Session
    handles: Mapping[str, str]
    """By credential."""
    minted: tuple[MintedHandle, ...]
    proxy: str
    address: tuple[str, int]
    environment: Mapping[str, str]
    """What a client inside needs: proxy and trust, no handle."""


class TestDaemon(Daemon):
    """`Daemon` plus what tests do to it."""

    __test__ = False

    async def sandbox(self, **wanted: Any) -> Sandbox:
        """Open a session of policy `default` with a loopback port of its own."""
        assert self.listeners is not None
        wanted = {"tenant": "acme", "subject": "agent", "policy": "default"} | wanted
        session, minted = self.state.open_session(NewSession(**wanted), "test")
        address = await self.listeners.open_tcp(session.id)
        url = f"http://127.0.0.1:{address[1]}"
        variables = environment(trust_variables(self.trust), proxy_variables(url))
        return Sandbox(
            session,
            {handle.credential: handle.value for handle in minted},
            minted,
            url,
            address,
            variables | {"PATH": "/usr/bin:/bin"},
        )

    def records(self) -> list[dict[str, Any]]:
        """The audit log's records so far."""
        import json

        lines = (self.directory.audit / "audit.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def decisions(self) -> list[dict[str, Any]]:
        return [record for record in self.records() if record["type"] == "decision"]


@asynccontextmanager
async def running_daemon(
    directory: Path,
    policy: str,
    secrets: Mapping[str, str] | None = None,
    *,
    upstream_ca: Path,
    connect_to: Mapping[str, int],
    stores: Mapping[str, SecretStore] | None = None,
    bundle: bytes | None = None,
    **settings: Any,
) -> AsyncIterator[TestDaemon]:
    """A daemon on `policy` (YAML text, as policy `default`), with secrets in memory.

    `connect_to`: `host:port` -> the loopback port where the stand-in for it listens. `bundle`: a signed
    bundle instead of `policy`.
    """
    policies = directory / "policies"
    policies.mkdir(mode=0o755, parents=True, exist_ok=True)
    (policies / "default.yaml").write_text(policy)
    (policies / "default.yaml").chmod(0o644)
    if bundle is not None:
        policies = policies / "release.bundle"
        policies.write_bytes(bundle)
        policies.chmod(0o644)
    short = tempfile.TemporaryDirectory(prefix="cch-")  # a socket's path has 107 bytes, and pytest's are long
    made = Settings(
        state_dir=directory / "state",
        runtime_dir=Path(short.name) / "run",
        policy=policies,
        upstream_ca_file=upstream_ca,
        allowed_networks=("127.0.0.0/8",),
        connect_to={name: f"127.0.0.1:{port}" for name, port in connect_to.items()},
        drain_seconds=2.0,
        **settings,
    )
    daemon = TestDaemon(made, stores if stores is not None else {"memory": MemoryStore(secrets or {})})
    await daemon.start()
    try:
        yield daemon
    finally:
        await daemon.stop()
        await asyncio.sleep(0)
        short.cleanup()
