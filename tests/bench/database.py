"""`python -m tests.bench.database`: a fleet of three daemons and 10,000 sessions on one PostgreSQL.

Prints one line: how long after a revocation was asked for the last of three refuses (p99), what opening a
session takes (median), by how much a tenant's limit was missed under full load from all three, and what a
request costs a daemon of a fleet, in CPU, against one that is alone. `--latency 0.2`: with a database that
far away.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from coatcheck.state import State, StateSettings
from tests.bench.fleet import Fleet, running_fleet
from tests.state.house import POLICIES
from tests.system.fleet.far_away import far_away
from tests.system.fleet.fleet import new_key, wanted
from tests.system.fleet.member_process import MemberProcess
from tests.system.fleet.postgres_server import PASSWORD, postgres_server

LIMIT, BURST = 300, 60
"""A tenant's, a second; three daemons ask for several times as much."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.database", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--revocations", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the load on a limit")
    parser.add_argument(
        "--requests", type=int, default=1_000, help="of each turn; there are six of each kind"
    )
    parser.add_argument(
        "--latency", type=float, default=0.0, help="seconds, for a round trip to the database"
    )
    return parser.parse_args()


@contextmanager
def three(directory: Path, latency: float) -> Iterator[tuple[list[MemberProcess], dict[str, str]]]:
    with ExitStack() as stack:
        server = stack.enter_context(postgres_server(options={"fsync": "on", "shared_buffers": "128MB"}))
        port = stack.enter_context(far_away(server.port, latency)) if latency else server.port
        (directory / "password").write_text(PASSWORD)
        settings = {
            "shared_state": f"postgresql://coatcheck@127.0.0.1:{port}/coatcheck",
            "shared_state_key": str(new_key(directory / "key")),
            "shared_state_password_file": str(directory / "password"),
        }
        more = {**settings, "max_sessions": 50_000, "session_lease": 43_200.0}
        members = [MemberProcess(directory / f"member-{number}", more) for number in range(3)]
        for member in members:
            stack.callback(member.kill)
            member.start()
        for member in members:
            member.until_it_hears()
        yield members, settings


def opened(members: list[MemberProcess], count: int) -> tuple[list[str], list[float]]:
    """Sessions, by all three at once; and how long each took one that opens alone."""
    share = max(1, count // 3)
    for number, member in enumerate(members):
        member.begin("open_many", f"issuer-{number}", share)
    sessions = [session for member in members for session, _ in member.end()]
    alone = [took for _, took in members[0].ask("open_many", "alone", 50)]
    deadline = time.monotonic() + 120
    while any(member.ask("count") < len(sessions) + 50 for member in members):
        if time.monotonic() > deadline:
            raise SystemExit("the daemons do not know the same sessions")
        time.sleep(0.05)
    return sessions, alone


def revoked(members: list[MemberProcess], sessions: list[str]) -> list[float]:
    """From the question to the refusal at the last of three, each at another daemon in turn."""
    began: dict[str, float] = {}
    for number, session in enumerate(sessions):
        why, began[session], _ = members[number % 3].ask("revoke", session)
        if why:
            raise SystemExit(f"a revocation was answered with {why}")
        time.sleep(0.02)
    deadline = time.monotonic() + 30
    while True:
        heard = [member.ask("heard") for member in members]
        if all(session in each for session in sessions for each in heard):
            return [max(each[session] for each in heard) - began[session] for session in sessions]
        if time.monotonic() > deadline:
            raise SystemExit("a revocation did not reach a daemon")
        time.sleep(0.05)


def missed(members: list[MemberProcess], seconds: float) -> float:
    """How far from the limit what passed at all three was, over the time that they asked."""
    for member in members:
        member.begin("load", seconds, LIMIT, BURST)
    passed: int = sum(member.end() for member in members)
    return passed / (LIMIT * seconds + BURST) - 1


async def cost(directory: Path, settings: dict[str, str], sessions: int, count: int) -> float:
    """CPU of a request at a daemon of a fleet, against that of one alone that has as many sessions: six turns
    of each, one by one."""
    _fill(directory / "alone/d/state", sessions)
    async with (
        running_fleet(directory / "alone") as alone,
        running_fleet(directory / "shared", settings=settings) as shared,
    ):
        taken: dict[int, list[float]] = {0: [], 1: []}
        for each in (alone, shared):
            await each.open_many([1])
            await _asked(each, count // 4)
        for _ in range(6):
            for number, each in enumerate((alone, shared)):
                taken[number].append(await _asked(each, count))
        return statistics.median(taken[1]) / statistics.median(taken[0])


def _fill(directory: Path, count: int) -> None:
    """A daemon's state of so many sessions, before it starts."""
    directory.mkdir(parents=True, mode=0o700)
    lasting = StateSettings(lease=43_200.0, max_lease=43_200.0, max_sessions=count)
    state = State.open(directory / "sessions", emit=lambda event: None, settings=lasting)
    state.swap_policies(POLICIES)
    for number in range(count):
        state.open_session(wanted(f"issuer|{number}"), "tests")
    state.close()


async def _asked(fleet: Fleet, count: int) -> float:
    """CPU seconds of so many requests on one connection."""
    member = fleet.members[0]
    reader, writer = await member.open(fleet.context)
    before = fleet.cpu_seconds()
    for _ in range(count):
        writer.write(member.request())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(head.decode())
        await reader.readexactly(1024)
    took = fleet.cpu_seconds() - before
    writer.transport.abort()
    return took


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="cch-bench-") as name:
        directory = Path(name)
        with three(directory, options.latency) as (members, settings):
            sessions, alone = opened(members, options.sessions)
            took = sorted(revoked(members, sessions[:: max(1, len(sessions) // options.revocations)]))
            error = missed(members, options.seconds)
            ratio = asyncio.run(cost(directory, settings, len(sessions), options.requests))
    print(
        f"fleet revoke_p99_ms={took[int(len(took) * 0.99)] * 1000:.1f}"
        f" open_ms={statistics.median(alone) * 1000:.1f}"
        f" limits_error={error:+.3f} requests_vs_single={ratio:.3f}"
        f" (revoke_p50_ms={statistics.median(took) * 1000:.1f} sessions={len(sessions)}"
        f" latency_ms={options.latency * 1000:.0f})"
    )


if __name__ == "__main__":
    main()
