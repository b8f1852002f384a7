"""`python -m tests.bench.neighbour`: what a sandbox notices of another one that goes wild.

Two sandboxes of the namespace backend on one machine, with small limits. In one of them something goes wild;
in the other one `true` is executed over and over, and the time from asking to the exit code is taken. The
rounds are interleaved, so that what else the machine does hits all of them.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from coatcheck.images.guest_programs import agent
from coatcheck.launcher.channel import Stream
from tests.bench.report import say
from tests.containers.namespaces import Inside, finish, sandbox, spec

WILD = {
    "nothing": None,
    "fork bomb": "while True:\n try: os.fork()\n except OSError: pass",
    "memory hog": "while True:\n if not os.fork(): x = [bytearray(1 << 20) for _ in range(500)]\n os.wait()",
    "disk filler": """
while True:
    try:
        with open("/tmp/x", "wb", 0) as file:
            while True:
                file.write(bytes(1 << 20))
    except OSError:
        os.unlink("/tmp/x")
""",
    "output flood": "while True: os.write(1, bytes(65536))",
    "busy loops": "for _ in range(8):\n if not os.fork():\n  while True: pass\nos.wait()",
}


async def measure(neighbour: Inside, seconds: float) -> list[float]:
    """Seconds of each `exec true`."""
    found = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        await finish(await neighbour.start("true"))
        found.append(time.monotonic() - began)
    return found


async def go_wild(wild: Inside, code: str) -> Stream:
    stream = await wild.start("python3", "-I", "-S", "-c", "import os\n" + code)
    reading = asyncio.create_task(finish(stream, keep=0))
    reading.add_done_callback(lambda done: done.cancelled() or done.exception())
    return stream


async def main(seconds: float, rounds: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in WILD}
    hit: dict[str, set[str]] = {name: set() for name in WILD}
    with tempfile.TemporaryDirectory() as directory:
        program = agent(Path(directory) / "guest")
        async with sandbox(Path(directory), program, spec()) as neighbour:
            for number in range(rounds):
                for name, code in WILD.items():
                    say(f"round {number + 1} of {rounds}: {name}")
                    async with sandbox(Path(directory), program, spec()) as wild:
                        if code is not None:
                            await go_wild(wild, code)
                            await asyncio.sleep(0.5)  # until it is at its limit
                        times[name] += await measure(neighbour, seconds)
                        hit[name] |= wild.machine.hits()
    quiet = statistics.median(times["nothing"])
    print(f"\n{'the other sandbox':<20}{'p50 ms':>8}{'p99 ms':>8}{'ratio':>7}  limits that it hit")
    for name, found in times.items():
        p99 = statistics.quantiles(found, n=100)[98]
        p50 = statistics.median(found)
        print(
            f"{name:<20}{p50 * 1000:8.2f}{p99 * 1000:8.2f}{p50 / quiet:7.2f}  {', '.join(sorted(hit[name]))}"
        )
    worst = max(statistics.median(found) / quiet for found in times.values())
    print(f"neighbour exec_p50_ms={quiet * 1000:.2f} worst_ratio={worst:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.neighbour", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    given = parser.parse_args()
    asyncio.run(main(given.seconds, given.rounds))
