"""A working day of a host in less time: memory and descriptors stay, and every answer is the right one."""

import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.fleet import HOST, Fleet, Member, running_fleet
from tests.hard.failed import Failed

AN_HOUR = 11_520
"""Requests of sixteen sandboxes that ask once in five seconds, as agents do that think in between."""
HOURS = 8
SAMPLES = 60
WARM_UP = 0.25
"""Of the time: caches fill, closed sessions are kept for a while, and the allocator settles."""
GROWTH = 0.05
DESCRIPTORS = 16
"""More at the end than after the warm-up, at most: connections come and go while they are counted."""
MAX_SESSIONS = 150
"""So few that those which are over are forgotten within the warm-up."""


@dataclass(frozen=True, slots=True)
class Sample:
    minutes: float
    requests: int
    memory: float
    descriptors: int


@dataclass
class Soak:
    fleet: Fleet
    until: float
    chance: random.Random
    done: Counter[str] = field(default_factory=Counter)
    """Requests and sessions, by what they were."""
    samples: list[Sample] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.until

    @property
    def requests(self) -> int:
        return self.done.total() - self.done["sessions"] - self.done["reloads"]

    def anybody(self) -> Member:
        return self.chance.choice(self.fleet.members)

    # --- what sandboxes do -----------------------------------------------------------------------------

    async def kept(self) -> None:
        """Some hundred requests on a connection, then another."""
        member = self.anybody()
        reader, writer = await member.open(self.fleet.context)
        for _ in range(self.chance.randrange(50, 400)):
            writer.write(member.request())
            await _expect(reader, 200, 1024)
            self.done["kept"] += 1
            if self.over:
                break
        writer.close()

    async def fresh(self) -> None:
        answer = await self.anybody().ask(self.fleet.context)
        _must(answer == "200", f"a new connection: {answer}")
        self.done["fresh"] += 1

    async def refused(self) -> None:
        """Another's handle, and a host that no rule allows."""
        one, other = self.chance.sample(self.fleet.members, 2)
        answer = await one.ask(self.fleet.context, handle=other.handle)
        _must(answer == "401 handle_stolen", f"another's handle: {answer}")
        reader, writer = await one.connect()
        writer.write(b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        _must(b" 403 " in head, f"another host: {head!r}")
        writer.transport.abort()
        self.done["refused"] += 2

    async def stream(self) -> None:
        """Events for a second; every third time their reader leaves in the middle."""
        member = self.anybody()
        reader, writer = await member.open(self.fleet.context)
        writer.write(member.request("/stream"))
        if self.chance.random() < 0.33:
            await reader.readuntil(b"data: tick")
        else:
            await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.transport.abort()
        self.done["streams"] += 1

    async def large(self) -> None:
        """8 MiB to a receiver that takes its time, and may have enough of it."""
        member = self.anybody()
        reader, writer = await member.open(self.fleet.context)
        writer.write(member.request("/large"))
        await reader.readuntil(b"\r\n\r\n")
        left = self.chance.choice([1 << 20, 8 << 20])
        while left > 0:
            left -= len(await reader.readexactly(min(left, 1 << 18)))
            await asyncio.sleep(0.02)
        writer.transport.abort()
        self.done["large"] += 1

    async def upload(self) -> None:
        member = self.anybody()
        reader, writer = await member.open(self.fleet.context)
        size = self.chance.randrange(1, 1 << 20)
        head = f"Content-Length: {size}\r\n\r\n".encode()
        writer.write(member.request("/").replace(b"GET", b"POST").removesuffix(b"\r\n") + head)
        for sent in range(0, size, 65_536):
            writer.write(b"u" * min(65_536, size - sent))
            await writer.drain()
        await _expect(reader, 200, 2)
        writer.close()
        self.done["uploads"] += 1

    # --- what launchers and operators do -----------------------------------------------------------------

    async def session(self) -> None:
        """A sandbox's whole life."""
        control, number = self.fleet.control, 1000 + self.done["sessions"] % 60_000
        member = await asyncio.to_thread(self.fleet.open_one, number, own=number % 3 == 0)
        answer = await member.ask(self.fleet.context)
        _must(answer == "200", f"a new session: {answer}")
        await asyncio.to_thread(control.mint, member.id, "openai", 60)
        await asyncio.to_thread(control.renew, member.id)
        await asyncio.to_thread(control.end if number % 2 else control.revoke, member.id)
        answer = await member.ask(self.fleet.context)
        _must(answer.endswith("Error"), f"a session that is over: {answer}")
        self.done["fresh"] += 1
        self.done["refused"] += 1
        self.done["sessions"] += 1
        await asyncio.sleep(0.3)

    async def reload(self) -> None:
        """The policy as it was, with another hash."""
        policy = self.fleet.daemon.policy
        text = policy.read_text().partition("# ")[0]
        policy.write_text(f"{text}# {self.done['reloads']}\n")
        await asyncio.to_thread(self.fleet.control.reload)
        self.done["reloads"] += 1
        await asyncio.sleep(10)

    # --- what is looked at -------------------------------------------------------------------------------

    async def sample(self) -> None:
        every = (self.until - self.began) / SAMPLES
        while not self.over:
            await asyncio.sleep(min(every, max(0.0, self.until - time.monotonic())))
            minutes = (time.monotonic() - self.began) / 60
            fleet = self.fleet
            self.samples.append(Sample(minutes, self.requests, fleet.memory(), fleet.descriptors()))
            last = self.samples[-1]
            print(
                f"soak: {last.minutes:.1f} min, {last.requests:,} requests, {last.memory:.1f} MiB,"
                f" {last.descriptors} descriptors",
                flush=True,
            )

    async def forever(self, work: Callable[[], Awaitable[None]]) -> None:
        while not self.over:
            await work()


async def _expect(reader: asyncio.StreamReader, status: int, size: int) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    _must(head.split()[1] == str(status).encode(), f"not {status}: {head!r}")
    await reader.readexactly(size)


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Failed(otherwise)


def run(minutes: float) -> str:
    """Raises Failed when an answer was wrong, when memory or descriptors grew, or the audit log is broken."""
    return asyncio.run(_run(60 * minutes))


async def _run(seconds: float) -> str:
    with tempfile.TemporaryDirectory(prefix="cch-soak-") as name:
        async with running_fleet(Path(name) / "f", MAX_SESSIONS) as fleet:
            await fleet.open_many(range(12))
            await fleet.open_many(range(12, 16), own=True)
            soak = Soak(fleet, time.monotonic() + seconds, random.Random())
            works = [*[soak.kept] * 6, soak.fresh, soak.fresh, soak.refused, soak.stream, soak.stream]
            works += [soak.large, soak.upload, soak.session, soak.reload]
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(soak.sample())
                    for work in works:
                        tasks.create_task(soak.forever(work))
            except* (OSError, EOFError, Failed) as errors:
                what = "; ".join(f"{type(error).__name__}: {error}" for error in errors.exceptions)
                raise Failed(
                    f"{_report(soak)}\n\nThen: {what}\n\n```\n{fleet.daemon.log[-3000:]}```"
                ) from None
            verified = await asyncio.to_thread(_verify, fleet)
            report = f"{_report(soak)}\n\n{verified}"
            wrong = _wrong(soak)
            if wrong or not verified.startswith("`coatcheck audit verify`: ok"):
                raise Failed(f"{wrong}\n\n{report}")
            return report


def _verify(fleet: Fleet) -> str:
    command = [sys.executable, "-m", "coatcheck", "audit", "verify", str(fleet.daemon.audit)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=dict(fleet.daemon.settings)
    )
    said = (done.stdout + done.stderr).partition(" (key from")[0].strip()
    return f"`coatcheck audit verify`: {'ok' if done.returncode == 0 else 'BROKEN'}: {said}"


def _ends(soak: Soak) -> tuple[list[Sample], list[Sample]]:
    """A quarter of the samples after the warm-up, and the last quarter."""
    settled = soak.samples[round(WARM_UP * len(soak.samples)) :]
    quarter = max(1, len(settled) // 4)
    return settled[:quarter], settled[-quarter:]


def _wrong(soak: Soak) -> str:
    first, last = _ends(soak)
    grown = statistics.median(s.memory for s in last) / statistics.median(s.memory for s in first) - 1
    more = max(s.descriptors for s in last) - max(s.descriptors for s in first)
    found = [f"**Memory grew by {grown:.1%}.**"] if grown > GROWTH else []
    found += [f"**{more} more descriptors.**"] if more > DESCRIPTORS else []
    return " ".join(found)


def _report(soak: Soak) -> str:
    counted = ", ".join(f"{count:,} {what}" for what, count in soak.done.most_common())
    text = (
        f"Sixteen sandboxes of a `coatcheck serve`, its upstream ({HOST}) and its callers in another process."
        f" {soak.requests:,} requests: {soak.requests / AN_HOUR:.1f} hours of sixteen agents that ask once in"
        f" five seconds ({HOURS} are meant). {counted}. Each answer was looked at."
    )
    if len(soak.samples) < 4:
        return text
    first, last = _ends(soak)
    memory = [statistics.median(s.memory for s in each) for each in (first, last)]
    most = [max(s.descriptors for s in each) for each in (first, last)]
    flat = (
        f"Resident memory {memory[0]:.1f} MiB after the warm-up, {memory[1]:.1f} MiB at the end"
        f" ({memory[1] / memory[0] - 1:+.1%}; the bar is {GROWTH:.0%}); descriptors at most {most[0]}, then"
        f" {most[1]}."
    )
    lines = [
        text,
        "",
        flat,
        "",
        "| minute | requests | resident MiB | descriptors |",
        "|---|---|---|---|",
    ]
    shown = soak.samples[:: max(1, len(soak.samples) // 12)]
    lines += [f"| {s.minutes:.1f} | {s.requests:,} | {s.memory:.1f} | {s.descriptors} |" for s in shown]
    return "\n".join(lines)
