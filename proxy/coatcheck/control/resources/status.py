"""/v1/status: where the daemon is and what it has, for the people who run it. `serve` logs the same."""

import os
from collections.abc import Iterator, Sequence
from typing import Final

from pydantic import Field

from coatcheck import __version__
from coatcheck.control.backend import Address, Daemon
from coatcheck.control.bridge import STALLED_SECONDS
from coatcheck.control.caller import Action
from coatcheck.control.context import Context
from coatcheck.control.models import ResponseModel
from coatcheck.control.operation import Answer, Ask, Operation
from coatcheck.control.problem import Refusal

STORE_SECONDS: Final = 20.0
"""For a log-in to a store that does not answer; the API's own limit is 30 s."""


class Fact(ResponseModel):
    name: str
    value: str


class StoreView(ResponseModel):
    name: str
    trouble: str | None = Field(description="Why it cannot be used; None: it can.")
    hint: str | None


class Status(ResponseModel):
    version: str
    pid: int
    ready: bool
    missing: list[str] = Field(description="What keeps it from serving.")
    sessions: int = Field(description="Live ones.")
    facts: list[Fact] = Field(description="Directories, sockets, addresses, policies: in words.")
    stores: list[StoreView]


def facts(daemon: Daemon) -> Iterator[tuple[str, str]]:
    """What and where, in words. In any thread."""
    settings = daemon.settings
    yield "state directory", str(settings.state_dir)
    yield "control socket", str(settings.control)
    scheme = "http" if settings.control_tls_certificate is None else "https"
    for address in daemon.control_addresses:
        yield "control API and page", f"{scheme}://{_authority(address)} (coatcheck page prints a login link)"
    proxy = daemon.proxy_address
    yield "proxy", _authority(proxy) if proxy is not None else "each session has a listener of its own"
    for name, addresses in (
        ("transparent proxy", daemon.addresses.transparent),
        ("DNS", daemon.addresses.dns),
    ):
        if addresses:
            yield name, _together(addresses)
    yield "policies", str(settings.policy)
    for name, policy in sorted(daemon.state.policies.items()):
        yield f"policy {name}", f"sha256 {policy.sha256}, {len(policy.rules)} rules"


def _together(addresses: Sequence[Address]) -> str:
    return ", ".join(map(_authority, addresses))


def _authority(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def status(context: Context, ask: Ask) -> Answer:
    backend = context.backend
    stores, silent = await context.bridge.call(backend.secret_stores, STORE_SECONDS)
    missing = [*backend.missing()]
    if context.bridge.age > STALLED_SECONDS:
        missing.append("plane")
    by_name = {each.store: each for each in silent}
    return Status(
        version=__version__,
        pid=os.getpid(),
        ready=not missing,
        missing=missing,
        sessions=backend.live_sessions,
        facts=[Fact(name=name, value=value) for name, value in facts(backend.daemon)],
        stores=[
            StoreView(
                name=name,
                trouble=by_name[name].message if name in by_name else None,
                hint=by_name[name].hint if name in by_name else None,
            )
            for name in stores
        ],
    )


OPERATIONS = (
    Operation(
        "show_status",
        "GET",
        "/v1/status",
        Action.MEASURE,
        "Show where the daemon is: directories, addresses, policies, and which secret stores answer",
        status,
        Status,
        reasons=frozenset({Refusal.PLANE_STALLED}),
    ),
)
