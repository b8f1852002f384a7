"""A sandbox from the warm pool: from the request for one to the answer that it runs, under a real daemon.

The answer comes when the rebind was acknowledged and its commands may run; its sessions are open and on disk
by then. Against the same from a boot, and with what its first command adds.
"""

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from coatcheck.client.sandbox.blocking import BlockingClient
from tests.bench import sandbox_https

SECONDS = 120.0
WANTED: dict[str, Any] = {"tenant": "bench", "subject": "guest", "policy": "policy"}
READY = 'coatcheck_warm_pool{state="ready"} 1.0'


@dataclass(slots=True)
class Claims:
    """Seconds of each kind."""

    claim: list[float] = field(default_factory=list)
    first_command: list[float] = field(default_factory=list)
    """From the request to what its first command wrote."""
    boot: list[float] = field(default_factory=list)

    def lines(self) -> list[str]:
        return [
            f"{what:<44} least, median: {min(times) * 1000:7.1f} {statistics.median(times) * 1000:7.1f} ms"
            for what, times in (
                ("claimed from the warm pool, until it runs", self.claim),
                ("the same, to its first command's output", self.first_command),
                ("booted instead, until it runs", self.boot),
            )
        ]


def measure(place: Path, rounds: int) -> Claims:
    """One that stands by at a time: nothing boots while a claim is measured."""
    claims = Claims()
    with sandbox_https.daemon(place, warm_pool="1") as control, BlockingClient(control) as client:
        for _ in range(rounds):
            _wait_for_one(control)
            began = time.perf_counter()
            sandbox = client.create(**WANTED, wait=False)
            claims.claim.append(time.perf_counter() - began)
            if sandbox.sandbox.shown["state"] != "running":
                raise RuntimeError(f"it was not claimed: {sandbox.sandbox.shown}")
            sandbox.run(["true"])
            claims.first_command.append(time.perf_counter() - began)
            sandbox.kill()
        _wait_for_one(control)
        began = time.perf_counter()
        client.create(**WANTED, processes=128).kill()
        claims.boot.append(time.perf_counter() - began)
    return claims


def _wait_for_one(control: Path) -> None:
    until = time.monotonic() + SECONDS
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(control)), trust_env=False) as client:
        while READY not in client.get("http://localhost/metrics").text:
            if time.monotonic() > until:
                raise RuntimeError("nothing came up in the warm pool")
            time.sleep(0.1)
