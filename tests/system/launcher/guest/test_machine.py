"""The agent as process 1 of a real microVM: what it can only do there. One guest serves all tests."""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from coatcheck.decision.session import Isolation
from coatcheck.images.build import build
from coatcheck.images.cache import find
from coatcheck.images.parts import Source
from coatcheck.images.problem import ImageError
from coatcheck.launcher.channel import Chunk, Stream
from coatcheck.launcher.microvm import MicroVM
from coatcheck.sandbox.machine import MachineSpec
from coatcheck.sandbox.resources import Resources
from coatcheck.settings.daemon import Settings
from tests.launcher.guest.inhabited import Inhabited, spoken_with

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.needs_debian("qemu-system-x86_64", "mke2fs"),
]
BOOT_SECONDS = 120.0
"""On a machine that many share, without KVM."""
MEBIBYTE = 1024 * 1024


async def answer(stream: Stream) -> None:
    """What was opened, as its own answer."""
    item = await stream.read()
    if isinstance(item, Chunk):
        opened = " ".join((stream.kind, *(value for _, value in stream.fields)))
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(opened)}\r\nConnection: close\r\n\r\n"
        await stream.write(item.data if stream.kind == "dns" else (head + opened).encode())
        await stream.end()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guest(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Inhabited]:
    cache = Settings().cache
    try:
        find(cache)
    except ImageError as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{missing}: {missing.hint}", pytrace=False)
        pytest.skip(str(missing))
    image = build(
        cache, "default", Source(), print
    )  # its initramfs anew, when the agent's source has changed
    directory = tmp_path_factory.mktemp("m") / secrets.token_hex(8)
    directory.mkdir(mode=0o700)
    spec = MachineSpec(Isolation.EMULATED, image, Resources(192, 1, 32, 64), boot_seconds=BOOT_SECONDS)
    async with contextlib.AsyncExitStack() as stack:
        machine = MicroVM(spec, directory)
        stack.push_async_callback(machine.stop)
        connected = await machine.start()
        guest = await stack.enter_async_context(
            spoken_with(connected, answer, "agent:1000,tool:1001", BOOT_SECONDS)
        )
        limits = (("memory", str(64 * MEBIBYTE)), ("processes", "40"))
        await guest.control("configure", *limits)
        assert guest.redirected
        yield guest


async def test_it_is_somebody_before_commands_run(guest: Inhabited) -> None:
    """Name, clock, users, no privilege: of this machine, not of the image."""
    script = "uname -n; date +%s; id -un; pwd; grep CapEff /proc/self/status; cat /proc/1/environ"
    name, now, user, place, capabilities = (await guest.sh(script, cwd="/home/agent")).out.splitlines()
    assert (name, user, place) == (b"inhabited", b"agent", b"/home/agent")
    assert abs(int(now) - time.time()) < 60
    assert capabilities.split() == [b"CapEff:", b"0" * 16]


async def test_its_only_way_out_is_the_channel(guest: Inhabited) -> None:
    """By the rules that the agent wrote into the guest's own kernel, for both identities."""
    curl = ("curl", "-s", "-m", "60", "--noproxy", "*")
    for who in ("agent", "tool"):
        for url, opened in (
            ("http://198.18.0.9/", f"transparent {who} 198.18.0.9 80"),
            ("http://169.254.169.254/", f"metadata {who}"),
        ):
            assert (await guest.run(*curl, url, identity=who)).out.decode() == opened
    assert (await guest.run(*curl, "http://[fd63::9]:81/")).out == b"transparent agent fd63::9 81"
    assert (await guest.sh("ls /sys/class/net")).out == b"lo\n"


async def test_who_takes_all_memory_is_told_so(guest: Inhabited) -> None:
    """Soon, with the neighbours alive, and the agent most of all."""
    async with await guest.open("sleep", "300") as neighbour:
        hog = await guest.run("python3", "-c", "x = [bytearray(1 << 20) for _ in range(200)]")
        assert (hog.get("signal"), hog.get("limit")) == ("9", "memory")
        assert not neighbour.is_over


async def test_who_starts_too_many_processes_is_told_so(guest: Inhabited) -> None:
    """And when its processes have ended, others can."""
    forks = await guest.sh("for n in $(seq 50); do sleep 0.2 & done")
    assert forks.get("limit") == "processes"
    async with asyncio.timeout(BOOT_SECONDS):
        while int((await guest.run("cat", "/sys/fs/cgroup/commands/pids.current")).out or 40) > 1:
            await asyncio.sleep(0.05)


async def test_who_fills_the_disk_is_told_so(guest: Inhabited) -> None:
    """It is thrown away with the sandbox, and is not larger than was asked for."""
    full = await guest.sh("head -c 50000000 /dev/zero > /home/agent/big", cwd="/home/agent")
    assert (full.get("exit"), full.get("limit")) == ("1", "disk")
    await guest.sh("rm /home/agent/big")


async def test_a_client_that_goes_away_ends_even_what_hides(guest: Inhabited) -> None:
    """Another session and group do not help: the command's cgroup is killed."""
    async with await guest.open("/bin/sh", "-c", "setsid sleep 777 & echo up; wait") as stream:
        assert await stream.read() == Chunk(b"up\n")
    for _ in range(50):
        if b"sleep 777" not in (await guest.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).out:
            return
    raise AssertionError("it still runs")


async def test_a_fork_is_somebody_else_before_it_runs(guest: Inhabited) -> None:
    """Frozen: clock, chance, name and machine-id are new; then it is thawed."""
    async with await guest.open("/bin/sh", "-c", "while echo t; do sleep 0.05; done") as ticking:
        await ticking.read()
        assert (await guest.control("freeze")).get("frozen") == "yes"
        later, machine_id = time.time() + 86400, secrets.token_hex(16)
        person = (("hostname", "clone"), ("clock", f"{later:.9f}"), ("machine-id", machine_id))
        done = await guest.control("rebind", ("generation", "2"), ("entropy", "ab" * 32), *person)
        assert done.get("generation") == "2"
        assert (await guest.control("thaw")).get("frozen") == "no"
        assert isinstance(await ticking.read(), Chunk)
    name, now, found = (await guest.sh("uname -n; date +%s; cat /etc/machine-id")).out.split()
    assert (name, found.decode()) == (b"clone", machine_id)
    assert abs(int(now) - later) < 120


async def test_a_full_disk_keeps_nobody_from_becoming_somebody_else(guest: Inhabited) -> None:
    """A build fills it, and the sandbox falls asleep: it must wake, and can be forked."""
    try:
        for size in (50_000_000, 4096, 1):
            await guest.sh(f"head -c {size} /dev/zero > /home/agent/big-{size}", cwd="/home/agent")
        full = await guest.sh("echo more > /home/agent/more", cwd="/home/agent")
        assert (full.get("exit"), full.get("limit")) == ("1", "disk")
        for generation in ("8", "9"):
            await guest.control("freeze")
            machine_id = secrets.token_hex(16)
            person = (("entropy", "ab" * 32), ("machine-id", machine_id))
            assert (await guest.control("rebind", ("generation", generation), *person)).get("generation")
            assert (await guest.control("thaw")).get("frozen") == "no"
            assert (await guest.run("cat", "/etc/machine-id")).out.decode().strip() == machine_id
    finally:
        await guest.sh("rm -f /home/agent/big-* /home/agent/more")
