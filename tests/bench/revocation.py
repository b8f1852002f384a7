"""How fast a revocation is felt: from the control answer to the last byte, up or down, of its session.

`python -m tests.bench.revocation` holds 128 closed-loop connections and 128 open streams on one daemon,
revokes one session after the other (each is replaced by a fresh one) and prints p50, p99 and the highest.
Client and origin share one process with each other, not with the daemon; their own delay counts, too.
"""

import asyncio
import ssl
import statistics
import sys
import tempfile
import time
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
    """Milliseconds to the last byte of a session. Below 0: it came first."""

    after_asking: float
    after_the_answer: float


async def revocations(directory: Path, *, count: int, sessions: int, loops: int, streams: int) -> list[Felt]:
    """One session after the other; `loops` and `streams` are a session's."""
    upstream = Ticking()
    took: list[Felt] = []
    async with bench(directory, sessions=sessions + count, upstream=upstream) as running:
        active = [Client(running, number) for number in range(sessions)]
        for client in active:
            client.start(loops, streams)
        await _all_carry(active, loops + streams)
        for step in range(count):
            victim = active.pop(0)
            assert victim.last, "the session carried nothing"
            asked = time.monotonic()
            answered = await running.revoke(victim.number)
            await asyncio.wait(victim.tasks, timeout=5)
            assert all(task.done() for task in victim.tasks), "a connection outlived its session"
            await asyncio.sleep(0.1)
            felt = max(victim.last, upstream.last.get(str(victim.number), 0.0))
            took.append(Felt((felt - asked) * 1000, (felt - answered) * 1000))
            fresh = Client(running, sessions + step)
            fresh.start(loops, streams)
            active.append(fresh)
            await _all_carry([fresh], loops + streams)
        for client in active:
            for task in client.tasks:
                task.cancel()
        await asyncio.gather(*(task for client in active for task in client.tasks), return_exceptions=True)
    return took


async def _main(count: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        took = await revocations(Path(directory), count=count, sessions=32, loops=4, streams=4)
    print(f"{count} revocations with {32 * 4} closed loops and {32 * 4} open streams; ms to the last byte")
    for name, values in (
        ("after the answer", [felt.after_the_answer for felt in took]),
        ("after asking", [felt.after_asking for felt in took]),
    ):
        p99 = statistics.quantiles(values, n=100, method="inclusive")[98]
        print(f"{name:17} p50 {statistics.median(values):6.1f}  p99 {p99:6.1f}  highest {max(values):6.1f}")


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
