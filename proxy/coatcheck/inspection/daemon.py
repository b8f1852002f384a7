"""What an inspection needs of the daemon, and how it gets there: secrets are on the plane's loop."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from coatcheck.inspection.holdings import Holdings, collect
from coatcheck.inspection.inspector import Inspector
from coatcheck.request.exchange import Exchange
from coatcheck.telemetry.audit.checkpoint import CheckpointSigner
from coatcheck.telemetry.events import Event


def inspector_of(
    exchange: Exchange,
    signer: CheckpointSigner,
    emit: Callable[[Event], None],
    loop: Callable[[], asyncio.AbstractEventLoop | None],
) -> Inspector:
    """The daemon's inspector. It belongs to the loop that uses it first. `loop`: the plane's."""

    async def on_the_planes_loop(sessions: Sequence[str]) -> tuple[Holdings, Mapping[str, str]]:
        known, in_force = exchange.state.sessions.by_id, exchange.state.policies
        names = sorted({known[each].policy for each in sessions if each in known})
        policies = {name: in_force.get(name) for name in names}
        hashes = {name: policy.sha256 for name, policy in policies.items() if policy is not None}
        tenants = {known[each].tenant for each in sessions if each in known}
        served = {text for tenant in tenants for text in exchange.secrets.texts(tenant)}
        return await collect(policies, exchange.store, served), hashes

    async def collected(sessions: Sequence[str]) -> tuple[Holdings, Mapping[str, str]]:
        running = loop()
        if running is None:
            raise RuntimeError("the daemon has not started")
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(on_the_planes_loop(sessions), running)
        )

    return Inspector(collected, signer, emit)
