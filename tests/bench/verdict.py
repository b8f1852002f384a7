"""What the checks of one request cost by themselves: no sockets, no mitmproxy.

The same policy, the same thousand sessions, secrets in memory, audit on disk. Run in a process of its own:
`python -m tests.bench.verdict DIRECTORY` prints one JSON object of microseconds.
"""

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from coatcheck.decision.decide import decide
from coatcheck.decision.denial import Deny
from coatcheck.decision.handle import verify
from coatcheck.decision.message import Destination, Origin, OriginClass, Peer, RequestHead
from coatcheck.decision.policy import SecretRef
from coatcheck.decision.substitute import substitute
from coatcheck.decision.verdict import Inject
from coatcheck.policy.file.loading import load_policy
from coatcheck.request.exchange import Exchange
from coatcheck.secrets.cache import CachedStore
from coatcheck.secrets.memory import MemoryStore
from coatcheck.secrets.router import Stores
from coatcheck.state.sessions import NewSession, StateSettings
from coatcheck.state.state import State
from coatcheck.telemetry.audit.checkpoint import CheckpointSigner
from coatcheck.telemetry.audit.log import AuditLog
from coatcheck.telemetry.metrics.metrics import Metrics
from coatcheck.telemetry.sinks import Telemetry
from coatcheck.telemetry.usage import UsageLedger
from tests.bench import world

ROUNDS = 9
REPEATS = 30
"""Passes over the 64 handles in a round."""

type Case = tuple[Peer, Destination, RequestHead]


def open_world(directory: Path) -> tuple[Exchange, AuditLog, State]:
    """An exchange with everything on, as `serve` wires it."""
    policy = load_policy("default", world.policy().encode())
    audit = AuditLog(
        directory / "audit.jsonl", signer=CheckpointSigner.load_or_create(directory / "checkpoint-key.pem")
    )
    telemetry = Telemetry(audit, Metrics(), UsageLedger())
    settings = StateSettings(lease=86_400, max_lease=86_400, max_age=86_400)
    state = State.open(directory / "state", emit=telemetry.emit, settings=settings)
    state.swap_policies({"default": policy})
    secrets = {str(c.secret): world.secret_of(name) for name, c in policy.credentials.items()}
    store = CachedStore(Stores({"vault": MemoryStore(secrets)}), ttl=86_400.0)
    asyncio.run(_fetch_all(store, [credential.secret for credential in policy.credentials.values()]))
    return Exchange(state, store, telemetry.emit), audit, state


async def _fetch_all(store: CachedStore, refs: list[SecretRef]) -> None:
    for ref in refs:
        await store.fetch(ref)


def open_cases(state: State) -> list[Case]:
    """All sessions, and a request with each handle of the busy ones."""
    cases = []
    for number in range(world.SESSIONS):
        host = world.host_of(number)
        wanted = NewSession(
            f"tenant-{number % 20}",
            f"agent-{number}",
            "default",
            credentials=frozenset(world.credentials_of(host)),
        )
        session, minted = state.open_session(wanted, "bench")
        if number >= world.CONNECTIONS:
            continue
        peer = Peer(session.id, (Origin(OriginClass.SOCKET, session.id),))
        for handle in minted:
            headers = (
                ("host", host),
                ("authorization", f"Bearer {handle.value}"),
                ("accept", "application/json"),
                ("user-agent", "bench/1"),
                ("accept-encoding", "identity"),
                ("connection", "keep-alive"),
            )
            head = RequestHead("GET", world.PATH, headers)
            cases.append((peer, Destination("https", host, 443), head))
    return cases


def microseconds(work: Callable[[Case], None], cases: list[Case], repeats: int = REPEATS) -> float:
    """The least over rounds of `work`'s mean CPU time: what is above it is the machine's noise (timeit)."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(repeats):
            for case in cases:
                work(case)
        rounds.append((time.thread_time() - start) / repeats / len(cases))
    return min(rounds) * 1e6


def measure(directory: Path) -> dict[str, float]:
    """Microseconds: the verdict (steps 2 to 5 and 7) on cached handles; a handle's signature checked for
    the first time; and all that Coatcheck itself does for one request, records on disk included."""
    exchange, audit, state = open_world(directory)
    cases = open_cases(state)
    for session in state.sessions.by_id.values():
        asyncio.run(exchange.secrets.learn(session))
    values = {name: world.secret_of(name) for host in world.HOSTS for name in world.credentials_of(host)}

    def verdict(case: Case) -> None:
        peer, destination, head = case
        found = decide(peer, destination, head, exchange.context())
        assert isinstance(found, Inject)
        names = tuple(injection.credential.name for injection in found.injections)
        assert exchange.buckets.take(found.session, found.rule, names, state.clock.now().monotonic) is None
        assert not isinstance(substitute(head, destination, None, found.injections, values, 0.0), Deny)
        exchange.buckets.leave(found.session, found.rule, names)

    def first_time(case: Case) -> None:
        text = case[2].headers[1][1].removeprefix("Bearer ")
        assert not isinstance(verify(text, state.keys.current), Deny)

    def request(case: Case) -> None:
        peer, destination, head = case
        call, waiting = exchange.receive(peer, destination, head, http2=False)
        assert waiting is None and call.denial is None, call.denial
        assert not isinstance(call.commit(b""), Deny)
        call.complete(None)

    try:
        gc.collect()
        gc.freeze()
        first = microseconds(first_time, cases, repeats=1)
        verdict(cases[0])
        return {
            "first_handle_us": first,
            "verdict_us": microseconds(verdict, cases),
            "request_us": microseconds(request, cases),
        }
    finally:
        state.close()
        audit.close()


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
