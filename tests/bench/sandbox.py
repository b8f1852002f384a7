"""`python -m tests.bench.sandbox`: how long a sandbox takes to its first command, against a bare QEMU.

Bare: the same QEMU, kernel, CPU and kernel arguments, no jail, no disks, and a static program as init. Ours:
everything, and the same program started by the agent inside. In turn, so that what else the machine does hits
both. The ratio is that of the least of each, which other work disturbed least; CPU seconds stand beside.
"""

import argparse
import asyncio
import contextlib
import os
import resource
import secrets
import shutil
import socket
import stat
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from coatcheck.containers import jail
from coatcheck.decision.session import Isolation
from coatcheck.images.cache import Cache
from coatcheck.images.initramfs import Entry, newc
from coatcheck.launcher import qemu
from coatcheck.launcher.channel import Channel, Chunk, Stream
from coatcheck.launcher.microvm import MicroVM
from coatcheck.launcher.network import close_network
from coatcheck.launcher.time_stamp_counter import tsc_khz
from coatcheck.sandbox.machine import MachineSpec
from coatcheck.sandbox.resources import Resources
from coatcheck.settings.daemon import Settings
from tests.bench import sandbox_https
from tests.bench.report import say

ABOVE = 500
"""Descriptors that nothing else has."""
FIRST = b"first-byte-of-a-static-program"
_PROGRAM = """
static long call(long number, long a, const void *b, long c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}
void _start(void)
{
    static const char text[] = "%s\\n";
    call(1, 1, text, sizeof text - 1); /* write */
    if (call(39, 0, 0, 0) == 1)        /* getpid: as init it must stay */
        for (;;)
            call(34, 0, 0, 0);         /* pause */
    call(60, 0, 0, 0);                 /* exit */
}
"""
SPEC = MachineSpec(
    isolation=Isolation.EMULATED,
    image=None,
    resources=Resources(memory_mib=512, cpus=1, disk_mib=1024, processes=256),
)
EXECS = 50
SECONDS = 120.0
"""For anything: a machine that is busier than that has no figures."""


@dataclass(slots=True)
class Times:
    """Of one kind of boot."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Of all processes that the boot took, QEMU's above all."""


@contextlib.contextmanager
def counted(times: Times) -> Iterator[None]:
    """CPU seconds of children that end within the block."""

    def now() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = now()
    yield
    times.cpu.append(now() - before)


def build(directory: Path) -> Path:
    """The static program; beside it `initrd`, with it as init."""
    (directory / "first.c").write_text(_PROGRAM % FIRST.decode())
    program = directory / "first"
    subprocess.run(
        [
            "cc",
            "-static",
            "-nostdlib",
            "-ffreestanding",
            "-O2",
            "-o",
            str(program),
            str(directory / "first.c"),
        ],
        check=True,
    )
    console = Entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    init = Entry("init", stat.S_IFREG | 0o755, program.read_bytes())
    (directory / "initrd").write_bytes(newc([Entry("dev", stat.S_IFDIR | 0o755), console, init]))
    return program


def boot_bare(image: Path, initrd: Path, times: Times, khz: int) -> None:
    """To the marker on the console."""
    console, theirs = socket.socketpair()
    with console, theirs, counted(times):
        unused, nobody = socket.socketpair()
        memory, overlay = (os.memfd_create(name) for name in ("memory", "overlay"))
        root = os.open(image / "root.ext4", os.O_RDONLY)  # which nothing reads
        os.ftruncate(memory, SPEC.resources.memory_mib << 20)
        files = [os.open(path, os.O_RDONLY) for path in (image / "vmlinuz", initrd)]
        given = qemu.numbered([*files, root], memory, overlay, nobody)
        given |= {qemu.CONTROL: unused.fileno(), qemu.CONSOLE: theirs.fileno()}

        def number() -> None:
            for ours in given.values():  # out of the way of QEMU's numbers
                os.dup2(ours, ABOVE + ours)
            for its, ours in given.items():
                os.dup2(ABOVE + ours, its)

        words = qemu.arguments(qemu.Hardware(SPEC, khz))
        began = time.perf_counter()
        process = subprocess.Popen(
            [str(jail.find_qemu()), *(word for word in words if word != "-S")],
            close_fds=False,
            preexec_fn=number,
        )
        try:
            console.settimeout(SECONDS)
            heard = b""
            while FIRST not in heard:
                heard += console.recv(4096)
            times.wall.append(time.perf_counter() - began)
        finally:
            process.kill()
            process.wait()
            unused.close()
            nobody.close()
            for descriptor in (memory, overlay, root, *files):
                os.close(descriptor)


@contextlib.asynccontextmanager
async def guest(image: Path, place: Path) -> AsyncIterator[Channel]:
    """One of ours, ready for commands."""
    directory = place / secrets.token_hex(8)
    directory.mkdir(mode=0o700)
    machine = MicroVM(replace(SPEC, image=image, boot_seconds=SECONDS), directory)

    async def refuse(stream: Stream) -> None:
        stream.reset("refused", "")

    try:
        connected = await machine.start()
        names = {"generation": "1", "hostname": "bench", "identities": "agent:1000,tool:1001"}
        channel = Channel(connected, refuse, names)
        running = asyncio.create_task(channel.run())
        try:
            await channel.ready(SECONDS)
            await close_network(channel, {"agent": 1000, "tool": 1001})
            await finish(
                await channel.open(
                    "control", [("op", "configure"), ("processes", str(SPEC.resources.processes))]
                )
            )
            yield channel
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    finally:
        await machine.stop()
        shutil.rmtree(directory)


async def finish(stream: Stream) -> bytes:
    """What it wrote, until it ended."""
    out = b""
    async with stream:
        while (piece := await stream.read()) is not None:
            if isinstance(piece, Chunk):
                out += piece.data
    return out


async def execute(channel: Channel, *command: str) -> bytes:
    fields = [("arg", word) for word in command]
    fields += [("env", "PATH=/usr/bin:/bin"), ("identity", "agent"), ("cwd", "/tmp"), ("stdin", "none")]
    return await finish(await channel.open("exec", fields))


async def bring(channel: Channel, program: bytes) -> None:
    """The static program becomes /tmp/first."""
    fields = [("path", "/tmp/first"), ("mode", "0755"), ("identity", "agent")]
    async with await channel.open("write", fields) as stream:
        await stream.write(program)
        await stream.end()
        while await stream.read() is not None:
            pass


async def boot_ours(image: Path, place: Path, times: Times) -> None:
    """To the same program's output through the channel. That it is brought there first is not counted: the
    bare guest, too, found it in what it booted from."""
    with counted(times):
        began = time.perf_counter()
        async with guest(image, place) as channel:
            arrived = time.perf_counter()
            await bring(channel, (place / "first").read_bytes())
            began += time.perf_counter() - arrived
            wrote = await execute(channel, "/tmp/first")
            times.wall.append(time.perf_counter() - began)
        if FIRST not in wrote:
            raise RuntimeError(f"the guest's program wrote {wrote[:200]!r}")


async def time_commands(image: Path, place: Path) -> list[float]:
    """Seconds of `true`, one after the other, in a guest that runs."""
    found = []
    async with guest(image, place) as channel:
        for _ in range(EXECS):
            began = time.perf_counter()
            await execute(channel, "true")
            found.append(time.perf_counter() - began)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    rounds = parser.parse_args().rounds
    image = Cache(Settings().cache).find()
    khz = tsc_khz()
    bare, ours = Times(), Times()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        place = Path(name)
        place.chmod(0o711)
        build(place)
        with sandbox_https.daemon(place) as control:
            hosts = [sandbox_https.on_the_host(control)]
            guest_speed, mux = sandbox_https.in_a_guest(control)
            hosts.append(sandbox_https.on_the_host(control))
        for number in range(rounds):
            boot_bare(image, place / "initrd", bare, khz)
            asyncio.run(boot_ours(image, place, ours))
            say(f"round {number + 1}: bare {bare.wall[-1]:.2f} s, sandbox {ours.wall[-1]:.2f} s")
        execs = asyncio.run(time_commands(image, place))
    median = statistics.median
    for what, times in (("bare", bare), ("sandbox", ours)):
        print(
            f"{what:<8} to its first byte, least, median: {min(times.wall):.2f} {median(times.wall):.2f} s,"
            f" CPU {min(times.cpu):.2f} {median(times.cpu):.2f} s"
        )
    print(f"exec true in a running guest: p50 {median(execs) * 1000:.1f} ms")
    host_rate = median(each.requests_per_second for each in hosts)
    host_flow = median(each.mib_per_second for each in hosts)
    print(
        f"HTTPS, curl on the host {host_rate:.0f} requests/s and {host_flow:.0f} MiB/s, in the guest "
        f"{guest_speed.requests_per_second:.0f} and {guest_speed.mib_per_second:.1f}; "
        f"a command's output comes at {mux:.0f} MiB/s: the rest is the guest's own TLS"
    )
    print(
        f"sandbox boot_vs_bare={min(ours.wall) / min(bare.wall):.2f}"
        f" exec_p50_ms={median(execs) * 1000:.1f}"
        f" https_vs_host={guest_speed.requests_per_second / host_rate:.2f}"
        f" mib_vs_host={guest_speed.mib_per_second / host_flow:.3f}"
    )


if __name__ == "__main__":
    main()
