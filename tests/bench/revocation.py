"""How fast a revocation is felt: from its answer to the last byte, up or down, that depended on it (I5).

`python -m tests.bench.revocation` holds 128 closed-loop connections and 128 open streams of 32 sessions on
one daemon, and revokes handles, sessions, the credential of all, and everything; what is gone is replaced.
Client and origin share one process with each other, not with the daemon; their own delay counts, too.
"""

import asyncio
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.streaming import Bench, bench

TICK = 0.02
"""Seconds between two chunks of an open stream."""


class Ticking:
    """In place of `streaming.Upstream`: `/loop/N` is answered at once, `/stream/N` for ever."""

    def __init__(self) -> None:
        self.last: dict[str, float] = {}
        """By session number: when the last byte of a request came."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                _, kind, number = head.split()[1].decode().split("/")
                self.last[number] = time.monotonic()
                if kind == "loop":
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    continue
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                while True:
                    writer.write(b"5\r\ntick\n\r\n")
                    await writer.drain()
                    await asyncio.sleep(TICK)
        except (OSError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            writer.transport.abort()


@dataclass
class Client:
    """All connections of one session."""

    running: Bench
    number: int
    last: float = 0.0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    carrying: set[asyncio.Task[None] | None] = field(default_factory=set)
    """Connections on which something came."""

    def start(self, loops: int, streams: int) -> None:
        kinds = ["loop"] * loops + ["stream"] * streams
        self.tasks = [asyncio.create_task(self._run(kind)) for kind in kinds]

    async def _run(self, kind: str) -> None:
        try:
            reader, writer = await self.running.open("http/1.1", self.number)
        except (OSError, ssl.SSLError, asyncio.IncompleteReadError):
            return
        handle = self.running.sessions[self.number]["handle"]
        line = f"GET /{kind}/{self.number} HTTP/1.1\r\nHost: api.openai.com\r\n"
        head = f"{line}Authorization: Bearer {handle}\r\n\r\n"
        try:
            while True:
                writer.write(head.encode())
                if b" 200 " not in await reader.readuntil(b"\r\n\r\n"):
                    return  # refused, as it should be once the session is over
                while data := await reader.read(65_536):
                    self.last = time.monotonic()
                    self.carrying.add(asyncio.current_task())
                    if kind == "loop" and data.endswith(b"ok"):
                        break
                else:
                    return
        except (OSError, asyncio.IncompleteReadError, ssl.SSLError):
            return
        finally:
            writer.transport.abort()


async def _all_carry(clients: list[Client], connections: int) -> None:
    async with asyncio.timeout(60):
        while any(len(client.carrying) < connections for client in clients):
            await asyncio.sleep(0.01)


@dataclass(frozen=True)
class Felt:
    """Milliseconds to the last byte of one session that a revocation concerned. Below 0: it came first."""

    after_asking: float
    after_the_answer: float


KINDS = ("handle", "session", "credential", "everything")
SESSIONS, LOOPS, STREAMS = 32, 4, 4
"""I5's load: 128 closed loops, and more than 100 open streams."""


async def revocations(
    directory: Path,
    *,
    count: Mapping[str, int],
    sessions: int,
    loops: int,
    streams: int,
    core: int | None = None,
) -> dict[str, list[Felt]]:
    """By kind, `count` times each; `loops` and `streams` are a session's."""
    upstream = Ticking()
    took: dict[str, list[Felt]] = {kind: [] for kind in count}
    async with bench(directory, sessions=sessions, upstream=upstream, core=core) as running:
        active = [Client(running, number) for number in range(sessions)]
        for client in active:
            client.start(loops, streams)
        await _all_carry(active, loops + streams)
        for kind in [each for each, times in count.items() for _ in range(times)]:
            victims = active if kind in ("credential", "everything") else active[:1]
            took[kind] += await _revoke(running, upstream, kind, victims)
            fresh = [Client(running, await running.another()) for _ in victims]
            for client in fresh:
                client.start(loops, streams)
            active = active[len(victims) :] + fresh
            await _all_carry(fresh, loops + streams)
        for client in active:
            for task in client.tasks:
                task.cancel()
        await asyncio.gather(*(task for client in active for task in client.tasks), return_exceptions=True)
    return took


async def _revoke(running: Bench, upstream: Ticking, kind: str, victims: list[Client]) -> list[Felt]:
    """What each victim felt."""
    assert all(victim.last for victim in victims), "a session carried nothing"
    asked = time.monotonic()
    answered = await running.revoke(kind, victims[0].number)
    tasks = [task for victim in victims for task in victim.tasks]
    await asyncio.wait(tasks, timeout=5)
    assert all(task.done() for task in tasks), f"a connection outlived the end of its {kind}"
    await asyncio.sleep(0.1)  # what is on its way to the origin counts, too
    last = [max(victim.last, upstream.last.get(str(victim.number), 0.0)) for victim in victims]
    return [Felt((moment - asked) * 1000, (moment - answered) * 1000) for moment in last]


def p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def measure(scale: float = 1.0, core: int | None = None) -> dict[str, list[Felt]]:
    """Under I5's load; `scale` makes it shorter, `core` is the daemon's."""
    alone, together = max(2, round(50 * scale)), max(1, round(4 * scale))
    count = {"handle": alone, "session": alone, "credential": together, "everything": together}
    with tempfile.TemporaryDirectory(prefix="coatcheck-bench-") as name:
        work = revocations(
            Path(name), count=count, sessions=SESSIONS, loops=LOOPS, streams=STREAMS, core=core
        )
        return asyncio.run(work)


def line(took: Mapping[str, list[Felt]]) -> str:
    """For machines: the slowest kind, then each, from *asking* for it, which is stricter than I5: under load
    the last byte often comes before the answer, which waits for the disk."""
    by_kind = {kind: max(0.0, p99([felt.after_asking for felt in took[kind]])) for kind in took}
    parts = " ".join(f"{kind}_ms={value:.1f}" for kind, value in by_kind.items())
    return f"revocation p99_ms={max(by_kind.values()):.1f} {parts}"


def table(took: Mapping[str, list[Felt]]) -> str:
    load = f"{SESSIONS * LOOPS} closed loops and {SESSIONS * STREAMS} open streams"
    rows = [f"Revoked under {load}; ms from the answer to the last byte that depended on it:"]
    for kind, felt in took.items():
        values = [each.after_the_answer for each in felt]
        rows.append(
            f"  {kind:<11}{len(values):4} felt it, p50 {statistics.median(values):7.1f}"
            f"  p99 {p99(values):7.1f}  highest {max(values):7.1f}"
            f"; from asking: p99 {p99([each.after_asking for each in felt]):7.1f}"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    result = measure(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
    print(table(result))
    print(line(result))
