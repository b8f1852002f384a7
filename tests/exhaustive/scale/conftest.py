"""A daemon in the test's loop whose sandboxes come by the shared listener, and by sockets of their own."""

import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coatcheck.decision.message import Origin, OriginClass
from coatcheck.state.sessions import NewSession
from tests.bench import fleet
from tests.bench.fleet import Member
from tests.daemon import TestDaemon, running_daemon


@dataclass
class House:
    daemon: TestDaemon
    context: ssl.SSLContext

    async def member(self, number: int, *, own: bool = False) -> Member:
        """A sandbox: with a Unix socket of its own, or known by its address on the shared listener."""
        source = "" if own else f"127.1.{number // 250}.{number % 250 + 1}"
        origin = Origin(OriginClass.ADDRESS, f"proxy|{source}") if source else None
        wanted = NewSession("acme", f"agent-{number}", "default", origin)
        session, (handle,) = self.daemon.state.open_session(wanted, "test")
        address = self.daemon.proxy_address
        assert address is not None
        assert self.daemon.listeners is not None
        url = f"http://127.0.0.1:{address[1]}"
        if own:
            url = f"unix://{await self.daemon.listeners.open_unix(session.id)}"
        return Member(session.id, url, handle.value, source)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with (
        fleet.upstream(tmp_path) as (tls, port),
        running_daemon(
            tmp_path / "d",
            fleet.POLICY.replace("file:openai/key#value", "memory:secret/openai#key"),
            {"memory:secret/openai#key": fleet.SECRET},
            upstream_ca=tls.ca,
            connect_to={f"{fleet.HOST}:443": port},
            proxy_port=0,
            proxy_trust_addresses=True,
        ) as daemon,
    ):
        yield House(daemon, ssl.create_default_context(cafile=str(daemon.trust.ca)))
