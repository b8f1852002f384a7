"""Ten thousand sessions live: what one more costs, what each can do, and how fast all of them are gone.

`python -m tests.bench.scale` opens 9,000 sessions on the shared listener and 1,000 with a socket of their own
beside a daemon with ten; opens, renews and revokes on both in turn, and compares; asks as many of them; kills
the large daemon and starts it again; and revokes everything. `ARGS` is another number than 10,000.
"""

import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.fleet import Fleet, running_fleet
from tests.bench.report import say

ROUNDS = 200
ASKING = 200
"""Sessions, of each kind, that ask for something."""


def _timed(work: Callable[[], object]) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def compare(small: Fleet, large: Fleet) -> dict[str, float]:
    """By operation: the large daemon's median time, relative to the small one's; and its CPU time."""
    times: dict[tuple[str, bool], list[float]] = {}
    cpu = {True: 0.0, False: 0.0}
    for number in range(ROUNDS):
        for fleet in (small, large):
            is_large, before = fleet is large, fleet.cpu_seconds()
            began = time.perf_counter()
            member = fleet.open_one(100_000 + number)
            opened = time.perf_counter() - began
            for what, took in (
                ("open", opened),
                ("renew", _timed(lambda f=fleet, m=member: f.control.renew(m.id))),  # type: ignore[misc]
                ("revoke", _timed(lambda f=fleet, m=member: f.control.revoke(m.id))),  # type: ignore[misc]
            ):
                times.setdefault((what, is_large), []).append(took)
            cpu[is_large] += fleet.cpu_seconds() - before
    ratios = {}
    for what in ("open", "renew", "revoke"):
        ten, many = (statistics.median(times[what, is_large]) for is_large in (False, True))
        print(f"  {what:<7} {ten * 1000:7.2f} ms with ten, {many * 1000:7.2f} ms: {many / ten:.2f} ×")
        ratios[what] = many / ten
    per_round = [cpu[is_large] / ROUNDS * 1000 for is_large in (False, True)]
    print(f"  CPU of one of each: {per_round[0]:.2f} ms with ten, {per_round[1]:.2f} ms")
    ratios["cpu"] = per_round[1] / per_round[0]
    return ratios


async def ask(fleet: Fleet, expected: str, count: int = ASKING) -> None:
    """Random sessions of each kind, one request each. AssertionError for another answer."""
    chance = random.Random(7)
    shared = [member for member in fleet.members if member.source]
    own = [member for member in fleet.members if not member.source]
    for group in (shared, own):
        for member in chance.sample(group, min(count, len(group))):
            answer = await member.ask(fleet.context)
            assert answer == expected or (expected != "200" and answer.endswith("Error")), answer


async def measure(sessions: int) -> None:
    with tempfile.TemporaryDirectory(prefix="cch-scale-") as name:
        directory = Path(name)
        async with running_fleet(directory / "a") as small, running_fleet(directory / "b") as large:
            await small.open_many(range(10))
            empty = large.memory()
            say(f"opening {sessions:,} sessions")
            began = time.perf_counter()
            await large.open_many(range(sessions * 9 // 10))
            await large.open_many(range(sessions * 9 // 10, sessions), own=True)
            opened = time.perf_counter() - began
            held = large.memory() - empty
            print(
                f"{sessions:,} sessions opened in {opened:.0f} s; {held * 1024 / sessions:.1f} KiB each,"
                f" {large.descriptors()} descriptors"
            )
            ratios = await asyncio.to_thread(compare, small, large)
            await ask(large, "200")
            stolen = await large.members[0].ask(large.context, handle=large.members[1].handle)
            assert stolen == "401 handle_stolen", stolen
            print(
                f"  {2 * ASKING} of them asked, each by its own origin; one with another's handle: {stolen}"
            )
            say("kill -9, and a new start")
            await large.daemon.kill()
            began = time.perf_counter()
            await large.daemon.start()
            restarted = time.perf_counter() - began
            large.members = [member for member in large.members if not member.source]  # another port
            await ask(large, "200")
            print(f"  killed and ready again after {restarted:.1f} s, each on its socket as before")
            before, began = large.descriptors(), time.perf_counter()
            gone = await asyncio.to_thread(large.control.revoke_many, everything=True)
            everything = time.perf_counter() - began
            await ask(large, "gone")
            print(
                f"  {gone:,} revoked in one call: {everything:.2f} s;"
                f" descriptors {before} -> {large.descriptors()}"
            )
            assert gone == sessions, gone
    words = " ".join(f"{what}_ratio={ratio:.2f}" for what, ratio in ratios.items())
    print(
        f"scale sessions={sessions} {words} kib_each={held * 1024 / sessions:.1f}"
        f" restart_s={restarted:.1f} everything_s={everything:.2f}"
    )


if __name__ == "__main__":
    asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
