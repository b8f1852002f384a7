"""A microVM that starts small, made larger from outside and smaller from inside: what was killed for its
memory runs, and what is no longer used goes back. Nobody gets more than the range, or than the host has."""

import asyncio
import time
from pathlib import Path

import pytest

from coatcheck.client.sandbox import Sandbox
from tests.cli.transcript import coatcheck
from tests.sandboxes import Place
from tests.system.e2e.growing import SECONDS, asks, fits, resized, sandbox, scale, where

__all__ = ["sandbox", "where"]

pytestmark = [
    pytest.mark.needs_debian("qemu-system-x86_64", "bwrap"),
    pytest.mark.asyncio(loop_scope="module"),
]
SERVICE, TOKEN = "http://169.254.169.254", "X-aws-ec2-metadata-token"


async def test_it_grows_when_its_caller_says_so(where: Place, sandbox: Sandbox, tmp_path: Path) -> None:
    """What was killed for its memory a moment ago runs, in the same sandbox."""
    assert not await fits(sandbox, 300)
    words = ("sandbox", "scale", sandbox.id, "--memory", "640", "--cpus", "2")
    env = {"COATCHECK_CONTROL_SOCKET": str(where.socket)}
    said = await asyncio.to_thread(coatcheck, *words, cwd=tmp_path, env=env)
    assert said.out == f"{sandbox.id}: 640 MiB of memory, 2 CPUs\n", said
    deadline = time.monotonic() + SECONDS
    while not await fits(sandbox, 300):
        assert time.monotonic() < deadline  # its balloon is letting go
    assert resized(where, sandbox) == ["640 MiB, 2 CPUs: caller"]


async def test_what_it_may_not_have_is_refused_inside(sandbox: Sandbox) -> None:
    """Above its ceiling, below its floor, what the host has promised; and what was passed on by somebody."""
    refused = await asks(
        sandbox,
        scale({"memory_mib": 2048}),
        scale({"memory_mib": 128}),
        scale({"memory_mib": 720}),
        scale({"memory": 512}),
        scale({"cpus": 2}, "-H", "X-Forwarded-For: 10.0.0.1"),
        scale({"cpus": 2}, "-H", "Host: localhost"),
        (f"{SERVICE}/v1/scale",),
    )
    assert [(status, said["error"]["reason"]) for status, said in refused] == [
        (400, "beyond_limit"),
        (400, "beyond_limit"),
        (503, "no_room"),
        (400, "malformed"),
        (403, "passed_on"),
        (400, "wrong_host"),
        (405, "method_not_allowed"),
    ]
