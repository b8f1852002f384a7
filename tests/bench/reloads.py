"""`python -m tests.bench.reloads`: what requests notice of policies that are read again.

One client asks over and over on a kept connection: while nothing is reloaded, and while 41 files of 25 rules,
one of them broken, are reloaded by SIGHUP five times a second and changed once a second. Rounds alternate.
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench.__main__ import start_coatcheck
from tests.bench.fairness import ask
from tests.bench.origin import running_origin
from tests.bench.report import say

FILES, RULES = 41, 25
MOST_SECONDS = 0.020


def policy(number: int, change: int) -> str:
    """A file of its own owner, which changes when `change` does."""
    rules = "".join(
        f"  - name: rule {rule}\n    hosts: [h{number}-{rule}.example.org]\n    methods: [GET, POST]\n"
        f"    paths: [/v1/{rule}/**]\n"
        for rule in range(RULES)
    )
    return f"version: 1\nowner: team-{number}\n# {change}\nrules:\n{rules}"


def write(directory: Path, number: int, text: str) -> None:
    """Whole at once."""
    made = directory / f".{number}"
    made.write_text(text)
    made.chmod(0o644)
    made.rename(directory / f"team-{number}.yaml")


@contextmanager
def reloading(directory: Path, pid: int, every: float) -> Iterator[None]:
    """Until the end of the block."""
    over = threading.Event()

    def run() -> None:
        for change in range(1_000_000):
            if over.wait(every):
                return
            if change % max(1, round(1 / every)) == 0:
                write(directory, 1 + change % (FILES - 1), policy(1 + change % (FILES - 1), change))
            os.kill(pid, signal.SIGHUP)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.reloads", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement (default 10)")
    parser.add_argument("--rounds", type=int, default=3, help="medians of so many (default 3)")
    parser.add_argument("--every", type=float, default=0.2, help="seconds between two SIGHUPs (default 0.2)")
    chosen = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    proxy, nginx, client = (cores[min(place, len(cores) - 1)] for place in range(3))
    with tempfile.TemporaryDirectory(prefix="coatcheck-reloads-") as name, ExitStack() as stack:
        directory = Path(name)
        directory.chmod(0o755)
        os.sched_setaffinity(0, {nginx})
        say("starting nginx, OpenBao and Coatcheck with 1,000 sessions")
        origin = stack.enter_context(running_origin(directory / "origin"))
        os.sched_setaffinity(0, set(cores))
        target = start_coatcheck(stack, directory, origin, proxy)
        os.sched_setaffinity(0, {client})
        policies = directory / "coatcheck" / "policies"
        for number in range(FILES - 1):
            write(policies, number, policy(number, 0))
        write(policies, FILES - 1, "version: 1\nowner: broken\nrules: none\n")
        time.sleep(5)  # until the daemon has seen them by itself
        more = []
        for _ in range(chosen.rounds):
            quiet = ask(target.routes[0], target.ca, origin.ca, chosen.seconds, 0.0)
            with reloading(policies, target.proxy.pid, chosen.every):
                beside = ask(target.routes[0], target.ca, origin.ca, chosen.seconds, 0.0)
            more.append(beside.quantile(0.999) - quiet.quantile(0.999))
            print(
                f"p50 {1000 * quiet.quantile(0.5):.2f} and {1000 * beside.quantile(0.5):.2f} ms,"
                f" p99.9 {1000 * quiet.quantile(0.999):.1f} and {1000 * beside.quantile(0.999):.1f} ms",
                flush=True,
            )
    median = statistics.median(more)
    held = "held" if median <= MOST_SECONDS else "missed"
    print(f"reloads p999_more_ms={1000 * median:.1f} bar {1000 * MOST_SECONDS:g} {held}")
    return 0 if median <= MOST_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
