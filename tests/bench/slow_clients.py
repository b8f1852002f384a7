"""A thousand clients that take their time, and what an honest one feels of them.

`python -m tests.bench.slow_clients` opens them from a hundred sandboxes, two hundred of each kind: some say
nothing, some stop in the middle of a CONNECT, a TLS hello or a body, some read nothing of a large answer.
Then one more sandbox asks 500 times, as it did before they came.
"""

import asyncio
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tests.bench.fleet import HOST, Fleet, Member, running_fleet
from tests.bench.report import say
from tests.bench.revocation import p99

type Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
type Slow = Callable[[Member, ssl.SSLContext], Awaitable[Streams]]

HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The first bytes of a TLS hello of 512."""
ASKED = 500
A_SANDBOX = 10
"""Slow clients of one."""


async def silent(member: Member, context: ssl.SSLContext) -> Streams:
    return await member.connect()


async def half_a_head(member: Member, context: ssl.SSLContext) -> Streams:
    reader, writer = await member.connect()
    writer.write(f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: ".encode())
    return reader, writer


async def half_a_hello(member: Member, context: ssl.SSLContext) -> Streams:
    reader, writer = await member.connect()
    writer.write(f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    writer.write(HELLO)
    return reader, writer


async def half_a_body(member: Member, context: ssl.SSLContext) -> Streams:
    reader, writer = await member.open(context)
    head = (
        member.request("/")
        .replace(b"GET", b"POST")
        .replace(b"\r\n\r\n", b"\r\nContent-Length: 100000\r\n\r\n")
    )
    writer.write(head + b"x" * 100)
    return reader, writer


async def reads_nothing(member: Member, context: ssl.SSLContext) -> Streams:
    reader, writer = await member.open(context)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(member.request("/large"))
    return reader, writer


KINDS: tuple[Slow, ...] = (silent, half_a_head, half_a_hello, half_a_body, reads_nothing)


async def hold(members: Sequence[Member], context: ssl.SSLContext, each: int) -> list[Streams]:
    """Opens `each` slow clients of each kind, the sandboxes taking turns."""
    held: list[Streams] = []
    for number in range(each):
        member = members[number % len(members)]
        held += await asyncio.gather(*(kind(member, context) for kind in KINDS))
    return held


async def honest(member: Member, context: ssl.SSLContext, count: int) -> list[float]:
    """Seconds that each of `count` requests on one connection took."""
    reader, writer = await member.open(context)
    took = []
    for _ in range(count):
        began = time.perf_counter()
        writer.write(member.request())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.partition(b"\r\n")[0], head
        await reader.readexactly(1024)
        took.append(time.perf_counter() - began)
    writer.transport.abort()
    return took


async def _measure(clients: int) -> None:
    with tempfile.TemporaryDirectory(prefix="cch-slow-") as name:
        async with running_fleet(Path(name) / "a") as fleet:
            await fleet.open_many(range(clients // A_SANDBOX))
            (good,) = await fleet.open_many([60_000])
            await honest(good, fleet.context, ASKED)
            before = await honest(good, fleet.context, ASKED)
            memory, descriptors = fleet.memory(), fleet.descriptors()
            say(f"{clients:,} slow clients come")
            held = await hold(fleet.members[:-1], fleet.context, clients // len(KINDS))
            while_held = await honest(good, fleet.context, ASKED)
            _print(fleet, clients, before, while_held, memory, descriptors)
            for _, writer in held:
                writer.transport.abort()
            after = descriptors
            for _ in range(600):
                after = fleet.descriptors()
                if after <= descriptors + 4:
                    break
                await asyncio.sleep(0.1)
            print(f"  gone: {after} descriptors, as before {descriptors}")


def _print(
    fleet: Fleet, clients: int, before: list[float], with_them: list[float], memory: float, descriptors: int
) -> None:
    p50 = [statistics.median(values) * 1000 for values in (before, with_them)]
    last = [p99(values) * 1000 for values in (before, with_them)]
    rise = fleet.memory() - memory
    print(
        f"an honest client, ms: p50 {p50[0]:.2f} without, {p50[1]:.2f} with {clients:,} slow ones;"
        f" p99 {last[0]:.2f}, {last[1]:.2f}; {rise:.0f} MiB more memory,"
        f" {fleet.descriptors() - descriptors} more descriptors"
    )
    print(
        f"slow clients={clients} p50_ratio={p50[1] / p50[0]:.2f} p99_ratio={last[1] / last[0]:.2f}"
        f" kib_each={rise * 1024 / clients:.0f}"
    )


if __name__ == "__main__":
    asyncio.run(_measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
