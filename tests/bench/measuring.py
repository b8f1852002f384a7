"""What is measured, in which order, and what is kept of it."""

import json
import os
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import load, world
from tests.bench.load import Sample
from tests.bench.origin import Origin
from tests.bench.proxies import BenchError, Proxy

SEQUENTIAL = 1000
"""Requests of the one sequential client a round, as many straight to the origin."""
WARM_UP = 300
"""Requests a connection before memory is looked at for the first time."""
COUNT_SECONDS = 30.0
"""For a collection of all that there is, behind what it does just then."""


@dataclass(frozen=True, slots=True)
class Target:
    """One of the proxies, and how its clients reach it."""

    proxy: Proxy
    routes: list[world.Route]
    ca: Path

    def blocks(self) -> int:
        """Blocks of memory that Coatcheck's live objects have (coatcheck_daemon.py)."""
        said = self.ca.parents[2] / "blocks"
        said.unlink(missing_ok=True)
        os.kill(self.proxy.pid, signal.SIGUSR2)
        deadline = time.monotonic() + COUNT_SECONDS
        while not said.exists():
            if time.monotonic() > deadline:
                raise BenchError("the daemon does not say how much memory it has: see its log")
            time.sleep(0.02)
        return int(said.read_text())


@dataclass(slots=True)
class Figures:
    """One value a round; the report takes medians."""

    kept_rate: list[float] = field(default_factory=list)
    kept_p50: list[float] = field(default_factory=list)
    kept_p99: list[float] = field(default_factory=list)
    kept_cpu: list[float] = field(default_factory=list)
    """Seconds a request."""
    kept_share: list[float] = field(default_factory=list)
    """How much of its core the proxy had under load; what is missing, other programs took."""
    fresh_rate: list[float] = field(default_factory=list)
    fresh_p50: list[float] = field(default_factory=list)
    fresh_p99: list[float] = field(default_factory=list)
    fresh_cpu: list[float] = field(default_factory=list)
    added: list[float] = field(default_factory=list)
    """Seconds at p50 for one sequential client."""
    peak: int = 0
    """Bytes."""


class Bench:
    """All measurements of one run, by the name of the proxy."""

    def __init__(self, origin: Origin, targets: list[Target], seconds: float) -> None:
        self.targets = targets
        self.seconds = seconds
        self.direct_routes = world.direct_routes(origin.address)
        self.figures: dict[str, Figures] = defaultdict(Figures)
        self.ceiling = Figures()
        """Of load and origin without a proxy."""
        self.growth = 0.0
        """Coatcheck's resident memory after many requests, relative to before, minus one."""
        self.grown_over = 0
        self._context = load.client_context(origin.ca, *(target.ca for target in targets))

    def run(self, rounds: int, say: Callable[[str], None]) -> None:
        """Interleaved rounds. The first requests of each proxy are not counted."""
        for target in self.targets:
            load.kept(target.routes, self._context, count=WARM_UP * len(target.routes))
        for number in range(1, rounds + 1):
            self._measure_ceiling()
            for target in self.targets:
                say(f"round {number} of {rounds}: {target.proxy.name}")
                self._measure(target, self.figures[target.proxy.name])

    def kept(self, target: Target) -> Sample:
        return load.kept(target.routes, self._context, seconds=self.seconds)

    def fresh(self, target: Target) -> Sample:
        return load.fresh(target.routes, self._context, self.seconds)

    def _measure_ceiling(self) -> None:
        seconds = min(2.0, self.seconds)
        kept = load.kept(self.direct_routes, self._context, seconds=seconds)
        fresh = load.fresh(self.direct_routes, self._context, seconds)
        _add_rates(self.ceiling, kept, fresh)

    def _measure(self, target: Target, figures: Figures) -> None:
        before = target.proxy.cpu_seconds()
        kept = self.kept(target)
        middle = target.proxy.cpu_seconds()
        fresh = self.fresh(target)
        after = target.proxy.cpu_seconds()
        _add_rates(figures, kept, fresh)
        figures.kept_cpu.append((middle - before) / len(kept.latencies))
        figures.kept_share.append((middle - before) / kept.seconds)
        figures.fresh_cpu.append((after - middle) / len(fresh.latencies))
        direct, through = load.alternating(
            [self.direct_routes[0], target.routes[0]], self._context, SEQUENTIAL
        )
        figures.added.append(through.quantile(0.5) - direct.quantile(0.5))
        figures.peak = target.proxy.peak_memory()

    def grow(self, target: Target, requests: int, say: Callable[[str], None]) -> None:
        """Resident memory over `requests` more, on connections that come and go.

        A twentieth of them goes before as the warm-up: caches fill, and the allocator settles.
        """
        say(f"  warm-up: {requests // 20:,}")
        load.kept(target.routes, self._context, count=max(WARM_UP * len(target.routes), requests // 20))
        before, blocks = target.proxy.memory(), target.blocks()
        batch = max(1000, min(25_000, requests // 4))
        while self.grown_over < requests:
            count = min(batch, requests - self.grown_over)
            load.kept(target.routes, self._context, count=count)
            self.grown_over += count
            self.growth = target.proxy.memory() / before - 1
            live = target.blocks() / blocks - 1
            say(f"  {self.grown_over:,} of {requests:,}: {self.growth:+.1%}, live objects {live:+.1%}")

    def count_audit(self, directory: Path) -> int:
        """Requests so far. BenchError unless each has exactly one decision record on disk, all injected."""
        sent = sum(load.asked[route.proxy] for route in self.targets[-1].routes)
        outcomes: dict[str, int] = defaultdict(int)
        for file in sorted(directory.glob("audit*.jsonl")):
            with file.open() as lines:
                for line in lines:
                    record = json.loads(line)
                    if record["type"] == "decision":
                        outcomes[record["outcome"]] += 1
        if outcomes != {"inject": sent}:
            raise BenchError(f"{sent} requests, but the audit log has {dict(outcomes)}")
        return sent


def _add_rates(figures: Figures, kept: Sample, fresh: Sample) -> None:
    figures.kept_rate.append(kept.rate)
    figures.kept_p50.append(kept.quantile(0.5))
    figures.kept_p99.append(kept.quantile(0.99))
    figures.fresh_rate.append(fresh.rate)
    figures.fresh_p50.append(fresh.quantile(0.5))
    figures.fresh_p99.append(fresh.quantile(0.99))


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the rounds' ratios: what disturbs one round disturbs both."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
