"""`python -m tests.bench.fairness`: what one sandbox notices of others that take all they can get.

One client asks over and over on a kept connection, alone and beside attackers: one session with 250 kept
connections, then eight with 60 each. Their requests are served, refused, over their limit, or refused with
the most expensive heads that fit. Proxy, origin, client and attackers have a core each where there are four.
"""

import argparse
import ctypes
import itertools
import json
import multiprocessing
import os
import select
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawValue
from multiprocessing.synchronize import Event
from pathlib import Path

from tests.bench.__main__ import start_coatcheck
from tests.bench.load import Client, Sample, client_context, request_bytes
from tests.bench.measuring import Target
from tests.bench.origin import running_origin
from tests.bench.proxies import BenchError
from tests.bench.report import say
from tests.bench.world import HOSTS, Route

MOST_P50, MOST_P99 = 3.0, 5.0
LIMITED = HOSTS[-1]
PREFIX = "ghp_"
POLICY = {
    "credentials": {
        "reference": {
            "secret": "vault:secret/reference#api_key",
            "hosts": [HOSTS[-2]],
            "inject": {"header": "Authorization", "value": "Bearer {secret}"},
            "shape": {"prefix": PREFIX, "length": 36},
        }
    },
    "rules": [
        {"name": "reference", "hosts": [HOSTS[-2]], "methods": ["POST"], "credentials": ["reference"]},
        {"name": "limited", "hosts": [LIMITED], "methods": ["HEAD", "PUT"], "limits": {"requests": "1/hour"}},
    ],
}
"""Beside the bench's own: a reference handle, and a rule that is always over its limit."""
SIZE = 62_000
"""Of an expensive head: just below what a head may have."""


def asking(route: Route, kind: str) -> tuple[Route, bytes]:
    """What an attacker asks over and over, and where."""
    head = f"Host: {route.host}\r\nUser-Agent: bench/1\r\n"
    match kind:
        case "served":
            return route, request_bytes(route, route.handles[0])
        case "refused":
            return route, f"GET /v2/models HTTP/1.1\r\n{head}\r\n".encode()
        case "limited":
            limited = Route(route.proxy, f"{LIMITED}:443", LIMITED, route.handles)
            return limited, f"PUT / HTTP/1.1\r\nHost: {LIMITED}\r\nContent-Length: 0\r\n\r\n".encode()
        case "percent":
            value = "%25" * (SIZE // 3)
        case "path":
            return route, f"GET /v2/{'%25' * (SIZE // 3)} HTTP/1.1\r\n{head}\r\n".encode()
        case "segments":
            return route, f"GET {'/%61' * (SIZE // 4)} HTTP/1.1\r\n{head}\r\n".encode()
        case "shape":
            value = PREFIX * (SIZE // len(PREFIX))
        case "handles":
            value = "cch_eyJ " * (SIZE // 8)
        case _:
            raise ValueError(kind)
    return route, f"GET /v2/models HTTP/1.1\r\n{head}X-Value: {value}\r\n\r\n".encode()


KINDS = ("served", "refused", "limited", "percent", "path", "segments", "shape", "handles")


class Attacker(Client):
    """Asks one thing for ever, whatever the answer is."""

    def __init__(self, route: Route, request: bytes, context: ssl.SSLContext) -> None:
        super().__init__(route, context)
        self._request = request

    def attack(self) -> Generator[None]:
        """Waits for each answer before it asks again."""
        yield from self.open()
        while True:
            left = self._request
            while left:
                try:
                    left = left[self._tls.send(left) :]
                except ssl.SSLWantWriteError:
                    yield
            answer = b""
            while not _complete(answer):
                yield
                try:
                    answer += self._received(self._tls.recv(65_536))
                except ssl.SSLWantReadError:
                    continue


def _complete(answer: bytes) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line[15:])
    return body.endswith(b"0\r\n\r\n")


def attack(
    asked: list[tuple[Route, bytes]], ca: Path, core: int, running: Event, answered: ctypes.c_long
) -> None:
    """A connection for each of `asked`, in this process, until it is killed."""
    os.sched_setaffinity(0, {core})
    context = client_context(ca)
    epoll = select.epoll()
    tasks: dict[int, Generator[None]] = {}
    for route, request in asked:
        client = Attacker(route, request, context)
        client.connect()
        task = client.attack()
        next(task)
        tasks[client.fileno()] = task
        epoll.register(client.fileno(), select.EPOLLIN)
    running.set()
    while True:
        for descriptor, _ in epoll.poll():
            next(tasks[descriptor])
            answered.value += 1


@contextmanager
def attackers(asked: list[tuple[Route, bytes]], ca: Path, core: int) -> Iterator[ctypes.c_long]:
    """Until the end of the block. What they read is counted."""
    context = multiprocessing.get_context("fork")
    running, answered = context.Event(), RawValue(ctypes.c_long, 0)
    process = context.Process(target=attack, args=(asked, ca, core, running, answered))
    process.start()
    try:
        if not running.wait(30):
            raise BenchError("the attackers did not get their connections")
        time.sleep(2.0)  # until their tunnels are open
        if not process.is_alive():
            raise BenchError("the attackers gave up; see above")
        yield answered
        if not process.is_alive():
            raise BenchError("the attackers gave up; see above")
    finally:
        process.kill()
        process.join()


def ask(route: Route, ca: Path, origin: Path, seconds: float, pause: float) -> Sample:
    """One request after the other on one kept connection."""
    client = Client(route, client_context(ca, origin))
    client.connect()
    sample = Sample()

    def through(steps: Generator[None]) -> None:
        for _ in steps:
            select.select([client.fileno()], [], [], 20)

    through(client.open())
    for _ in range(20):
        through(client.ask())
    start = time.perf_counter()
    while (began := time.perf_counter()) < start + seconds:
        through(client.ask())
        sample.latencies.append(time.perf_counter() - began)
        time.sleep(pause)
    sample.seconds = time.perf_counter() - start
    client.close()
    return sample


@dataclass(frozen=True, slots=True)
class Ratios:
    """What one attack made of the client's quiet figures."""

    p50: float
    p99: float


def measure(target: Target, origin: Path, chosen: argparse.Namespace, core: int) -> dict[str, Ratios]:
    """By the attack's name, medians of the rounds."""
    victim, *others = target.routes
    rounds: dict[str, list[Ratios]] = {}
    names = ("attack", "quiet ms p50", "p99", "beside p50", "p99", "ratios", "reads/s")
    print("{:<18}{:>14}{:>8}{:>12}{:>8}{:>14}{:>10}".format(*names))
    for _ in range(chosen.rounds):
        for (sessions, each), kind in itertools.product(((1, 250), (8, 60)), chosen.kinds):
            asked = [asking(route, kind) for route in others[:sessions] for _ in range(each)]
            quiet = ask(victim, target.ca, origin, chosen.seconds, chosen.pause)
            with attackers(asked, target.ca, core) as answered:
                before = answered.value
                beside = ask(victim, target.ca, origin, chosen.seconds, chosen.pause)
                rate = (answered.value - before) / beside.seconds
            figures = [1000 * sample.quantile(q) for sample in (quiet, beside) for q in (0.5, 0.99)]
            ratios = Ratios(figures[2] / figures[0], figures[3] / figures[1])
            name = f"{sessions} x {each} {kind}"
            rounds.setdefault(name, []).append(ratios)
            print(
                f"{name:<18}{figures[0]:14.2f}{figures[1]:8.2f}{figures[2]:12.2f}{figures[3]:8.2f}"
                f"{ratios.p50:7.2f}{ratios.p99:7.2f}{rate:10.0f}",
                flush=True,
            )
    return {
        name: Ratios(statistics.median(r.p50 for r in found), statistics.median(r.p99 for r in found))
        for name, found in rounds.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.fairness", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (default 5)")
    parser.add_argument("--rounds", type=int, default=3, help="medians of so many (default 3)")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between the client's requests")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS, help="of attacks (default all)")
    chosen = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    proxy, nginx, client, attacker = (cores[min(place, len(cores) - 1)] for place in range(4))
    with tempfile.TemporaryDirectory(prefix="coatcheck-fairness-") as name, ExitStack() as stack:
        directory = Path(name)
        directory.chmod(0o755)
        os.sched_setaffinity(0, {nginx})
        os.environ["BENCH_POLICY"] = json.dumps(POLICY)
        say("starting nginx, OpenBao and Coatcheck with 1,000 sessions")
        origin = stack.enter_context(running_origin(directory / "origin"))
        os.sched_setaffinity(0, set(cores))
        target = start_coatcheck(stack, directory, origin, proxy)
        os.sched_setaffinity(0, {client})
        found = measure(target, origin.ca, chosen, attacker)
    p50, p99 = max(each.p50 for each in found.values()), max(each.p99 for each in found.values())
    held = p50 <= MOST_P50 and p99 <= MOST_P99
    bars = f"bars {MOST_P50:g} and {MOST_P99:g} {'held' if held else 'missed'}"
    print(f"fairness p50_ratio={p50:.2f} p99_ratio={p99:.2f} {bars}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
