"""The launcher with everything above it removed: it boots a sandbox, runs a command in it, and ends it."""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, UnixConnector, WSMsgType

from coatcheck.decision.session import Isolation
from coatcheck.durable.asking import ask_supervisor
from coatcheck.images.build import build
from coatcheck.images.cache import find
from coatcheck.images.guest_programs import AGENT_SOURCES, program
from coatcheck.images.parts import Source
from coatcheck.images.problem import ImageError
from coatcheck.launcher.channel import StreamReset
from coatcheck.launcher.spec import SOCKET, dumps
from coatcheck.sandbox.machine import MachineSpec
from coatcheck.sandbox.resources import Resources
from coatcheck.sandbox.sandbox import Backend, Ending
from coatcheck.settings.daemon import Settings
from tests.containers.namespaces import sandbox
from tests.launcher.scripted import identity, spec

SECONDS = 120.0
"""For a guest to boot on a machine that many share, without KVM."""
ALONE = """
import runpy, sys

class Removed:
    def find_spec(self, name, path=None, target=None):
        if f"{name}.".startswith("coatcheck.durable."):
            raise ModuleNotFoundError(f"{name} was removed by a test")

sys.meta_path.insert(0, Removed())
try:
    import coatcheck.durable
except ModuleNotFoundError:
    runpy.run_module("coatcheck.launcher", run_name="__main__")
"""


@contextmanager
def launched(place: Path, **different: Any) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """A supervisor in a process that can import nothing of `coatcheck.durable`, and its sandbox's directory.
    No daemon answers it: it lives for one lease."""
    directory = place / secrets.token_hex(8)
    directory.mkdir(mode=0o700)
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    wanted = {"id": f"sbx_{directory.name}", "lock": lock, "lease_seconds": SECONDS} | different
    told = spec(directory, [identity(place)], **wanted)
    command = [sys.executable, "-I", "-c", ALONE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(lock,)) as process:
        os.close(lock)
        try:
            assert process.stdin is not None
            process.stdin.write(dumps(told))
            process.stdin.close()
            yield process, directory
        finally:
            process.terminate()


async def ran(process: "subprocess.Popen[bytes]", directory: Path, *command: str) -> tuple[int, bytes]:
    """The exit code of a command in it, and what it wrote."""
    deadline = time.monotonic() + SECONDS
    while not (directory / SOCKET).exists():
        assert process.poll() is None and time.monotonic() < deadline
        await asyncio.sleep(0.05)
    written = b""
    async with (
        asyncio.timeout(SECONDS),
        ClientSession(connector=UnixConnector(str(directory / SOCKET))) as client,
        client.ws_connect("http://localhost/exec") as ws,
    ):
        await ws.send_json({"command": command, "stdin": "none"})
        async for message in ws:
            if message.type is WSMsgType.BINARY:
                written += message.data[1:]
            else:
                return json.loads(message.data)["exit"], written
    raise AssertionError("the supervisor hung up")


async def boots_runs_and_ends(place: Path, **different: Any) -> None:
    with launched(place, **different) as (process, directory):
        assert await ran(process, directory, "sh", "-c", "echo here; exit 7") == (7, b"here\n")
        why = {"ending": Ending.KILLED, "detail": "by a test"}
        await asyncio.to_thread(ask_supervisor, directory, "POST", "/kill", why)
        assert await asyncio.to_thread(process.wait, SECONDS) == 0
        assert not directory.exists()


async def test_a_namespace_sandbox(tmp_path: Path, agent_program: Path) -> None:
    """On a laptop, in half a second."""
    await boots_runs_and_ends(tmp_path, agent=agent_program)


async def test_the_agent(tmp_path: Path) -> None:
    """Without what it does for machines that outlive their boot: it runs commands, and freezes none."""
    own, above = AGENT_SOURCES
    agent = program("agent", sorted(own.glob("*.[ch]")), tmp_path / "guest")
    assert above.parent.name == "durable"
    async with sandbox(tmp_path, agent, identities=("agent",)) as inside:
        assert (await inside.sh("echo here")).out == "here\n"
        for op in ("freeze", "rebind"):
            async with await inside.channel.open("control", [("op", op)]) as stream:
                with pytest.raises(StreamReset, match="no such operation"):
                    await stream.notes()


@pytest.mark.needs_debian("qemu-system-x86_64", "mke2fs")
async def test_a_microvm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A real guest of the image that users get."""
    cache = Settings().cache
    try:
        find(cache)
    except ImageError as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{missing}: {missing.hint}", pytrace=False)
        pytest.skip(str(missing))
    image = build(cache, "default", Source(), print)
    machine = MachineSpec(Isolation.EMULATED, image, Resources(192, 1, 32, 64), boot_seconds=SECONDS)
    await boots_runs_and_ends(tmp_path_factory.mktemp("m"), backend=Backend.MICROVM, machine=machine)
