"""`python -m tests.bench.durable`: how long a sandbox takes to stand still and to go on, against its boot.

One guest of the default image, 512 MiB, one CPU, in which a program writes a line a millisecond: the first of
its lines is "the first output", after a cold boot as after each way back. All ways in turn in one run; ratios
are those of the least of each, which other work disturbed least. Claims from the warm pool: `claiming`.
"""

import argparse
import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from coatcheck.durable.microvm import DurableMicroVM
from coatcheck.durable.snapshots.directory import Snapshot
from coatcheck.durable.snapshots.manifest import Origin
from coatcheck.durable.spec import Saving
from coatcheck.images.cache import Cache
from coatcheck.launcher.channel import Channel, Chunk, Stream
from coatcheck.launcher.network import close_network
from coatcheck.settings.daemon import Settings
from tests.bench import claiming
from tests.bench.report import say
from tests.bench.sandbox import SECONDS, SPEC, bring, finish

TICK = b"tick\n"
_PROGRAM = r"""
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **words)
{
    if (count > 1) { /* so many MiB, none of them zero, and kept */
        size_t size = (size_t)atol(words[1]) << 20;
        memset(malloc(size), 0x5a, size);
        write(1, "touched\n", 8);
        pause();
    }
    for (;; usleep(1000))
        write(1, "tick\n", 5);
}
"""
TOUCHED_MIB = 256
CLONES = 10
PAUSES = 20
CLAIMS = 10


@dataclass(slots=True)
class Figures:
    """Seconds of each kind, one a round; MiB."""

    boot: list[float] = field(default_factory=list)
    resume: list[float] = field(default_factory=list)
    first_save: list[float] = field(default_factory=list)
    there: list[float] = field(default_factory=list)
    """From the beginning of a save until the snapshot can be restored; the guest ran for most of it."""
    touched_save: list[float] = field(default_factory=list)
    disk_resume: list[float] = field(default_factory=list)
    one_clone: list[float] = field(default_factory=list)
    ten_clones: list[float] = field(default_factory=list)
    memory: dict[str, list[float]] = field(default_factory=dict)

    def note(self, what: str, mib: float) -> None:
        self.memory.setdefault(what, []).append(mib)


class Bench:
    def __init__(self, place: Path, image: Path) -> None:
        self.place = place
        self.snapshots = place / "snapshots"
        self.snapshots.mkdir(mode=0o700)
        self.spec = replace(SPEC, image=image, boot_seconds=SECONDS, generation=1)
        self.saving = Saving(snapshot_key=place / "snapshots.key")
        self.program = _build(place)
        self.figures = Figures()

    @contextlib.asynccontextmanager
    async def machine(self, saving: Saving) -> AsyncIterator[DurableMicroVM]:
        directory = self.place / secrets.token_hex(8)
        directory.mkdir(mode=0o700)
        machine = DurableMicroVM(self.spec, saving, directory)
        try:
            yield machine
        finally:
            await machine.stop()
            shutil.rmtree(directory)

    async def round(self) -> None:
        async with self.machine(self.saving) as machine:
            await self._life(machine)

    async def _life(self, machine: DurableMicroVM) -> None:
        figures = self.figures
        began = time.perf_counter()
        async with _channel(machine) as channel:
            arrived = time.perf_counter()
            await bring(channel, self.program)
            began += time.perf_counter() - arrived
            ticking = await _start(channel)
            await _read(ticking, TICK)
            figures.boot.append(time.perf_counter() - began)
            reading = asyncio.create_task(_drain(ticking))
            snapshot = await self._save(machine, figures.first_save)
            figures.note("one booted sandbox", _pss(machine.pid))
            await _cancelled(reading)
            await self._pause(machine, ticking)
            reading = asyncio.create_task(_drain(ticking))
            await machine.pause()
            figures.note("one paused sandbox, after it was paged out", await _paged_out(machine))
            await self._come_back(snapshot)
            await machine.resume()
            touching = await _start(channel, str(TOUCHED_MIB))
            await _read(touching, b"touched")
            await self._save(machine, figures.touched_save)
            await _cancelled(reading)

    async def ten_boots(self) -> None:
        """What the clones are held against: as many, each booted by itself, with the same program running."""
        async with contextlib.AsyncExitStack() as stack:
            machines = [await stack.enter_async_context(self.machine(self.saving)) for _ in range(CLONES)]
            for machine in machines:
                channel = await stack.enter_async_context(_channel(machine))
                await bring(channel, self.program)
                ticking = await _start(channel)
                await _read(ticking, TICK)
                reading = asyncio.create_task(_drain(ticking))
                stack.push_async_callback(_cancelled, reading)
            self.figures.note(f"{CLONES} boots together", sum(_pss(machine.pid) for machine in machines))

    async def _save(self, machine: DurableMicroVM, times: list[float]) -> Path:
        """How long the guest stands still."""
        place = self.snapshots / secrets.token_hex(4)
        began = time.perf_counter()
        saved = await machine.save(place)
        await machine.resume()
        times.append(time.perf_counter() - began)
        await machine.finish(saved, Origin("sbx_bench", (), time.time()))
        self.figures.there.append(time.perf_counter() - began)
        return place

    async def _pause(self, machine: DurableMicroVM, ticking: Stream) -> None:
        for _ in range(PAUSES):
            await machine.pause()
            with contextlib.suppress(TimeoutError):  # what was under way
                while True:
                    async with asyncio.timeout(0.05):
                        await ticking.read()
            began = time.perf_counter()
            await machine.resume()
            await _read(ticking, TICK)
            self.figures.resume.append(time.perf_counter() - began)

    async def _come_back(self, snapshot: Path) -> None:
        figures = self.figures
        saving = replace(self.saving, restore=snapshot)
        began = time.perf_counter()
        async with self.machine(saving) as machine:
            (await _first_output(machine)).close()
            figures.disk_resume.append(time.perf_counter() - began)
        for count, times in ((1, figures.one_clone), (CLONES, figures.ten_clones)):
            times.append(await self._clone(snapshot, count))

    async def _clone(self, snapshot: Path, count: int) -> float:
        """To the first output of the last, the template's filling included."""
        began = time.perf_counter()
        key = self.place / "snapshots.key"
        template = await asyncio.to_thread(lambda: Snapshot.open(snapshot, key).template())
        saving = replace(self.saving, restore=snapshot, template=template)
        async with contextlib.AsyncExitStack() as stack:
            clones = [await stack.enter_async_context(self.machine(saving)) for _ in range(count)]
            channels = await asyncio.gather(*(_first_output(clone) for clone in clones))
            seconds = time.perf_counter() - began
            if count > 1:
                self.figures.note(f"{count} clones together", sum(_pss(clone.pid) for clone in clones))
            for channel in channels:
                channel.close()
        os.close(template)
        return seconds


@contextlib.asynccontextmanager
async def _channel(machine: DurableMicroVM) -> AsyncIterator[Channel]:
    """Ready for commands, in a guest that boots."""

    async def refuse(stream: Stream) -> None:
        stream.reset("refused", "")

    names = {"generation": "1", "hostname": "bench", "identities": "agent:1000,tool:1001"}
    channel = Channel(await machine.start(), refuse, names)
    running = asyncio.create_task(channel.run())
    try:
        await channel.ready(SECONDS)
        await close_network(channel, {"agent": 1000, "tool": 1001})
        configure = [("op", "configure"), ("processes", str(SPEC.resources.processes))]
        await finish(await channel.open("control", configure))
        yield channel
    finally:
        await _cancelled(running)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _start(channel: Channel, *words: str) -> Stream:
    fields = [("arg", word) for word in ("/tmp/first", *words)]
    fields += [("env", "PATH=/usr/bin:/bin"), ("identity", "agent"), ("cwd", "/tmp"), ("stdin", "none")]
    return await channel.open("exec", fields)


async def _read(stream: Stream, wanted: bytes) -> None:
    found = b""
    async with asyncio.timeout(SECONDS):
        while wanted not in found:
            piece = await stream.read()
            if piece is None:
                raise RuntimeError(f"the guest's program ended after {found[-200:]!r}")
            if isinstance(piece, Chunk):
                found += piece.data


async def _drain(stream: Stream) -> None:
    while await stream.read() is not None:
        pass


async def _first_output(machine: DurableMicroVM) -> socket.socket:
    """Of a machine that is restored: its program still writes to the stream of the one that was saved. Its
    channel, which must stay open: without it the guest ends."""
    connected = await machine.start()
    heard = b""
    await machine.resume()
    async with asyncio.timeout(SECONDS):
        while TICK not in heard:
            heard += await asyncio.get_running_loop().sock_recv(connected, 65536)
    return connected


async def _paged_out(machine: DurableMicroVM) -> float:
    await machine.page_out()
    return _pss(machine.pid)


def _pss(pid: int) -> float:
    """MiB that are its own, with its share of what it has together with others."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _build(place: Path) -> bytes:
    source, program = place / "ticking.c", place / "ticking"
    source.write_text(_PROGRAM)
    subprocess.run(["cc", "-static", "-Os", "-s", "-w", "-o", str(program), str(source)], check=True)
    return program.read_bytes()


def _print(figures: Figures, on_disk: float, claims: claiming.Claims) -> None:
    for what, times in (
        ("cold boot to the first output", figures.boot),
        ("resumed after a pause, to the first output", figures.resume),
        ("first save, the guest stands still", figures.first_save),
        (f"save with {TOUCHED_MIB} MiB more touched", figures.touched_save),
        ("a save until it is there, all of them", figures.there),
        ("restored from disk, to the first output", figures.disk_resume),
        ("one clone, to its first output", figures.one_clone),
        (f"{CLONES} clones at once, to the last one's", figures.ten_clones),
    ):
        least, median = min(times) * 1000, statistics.median(times) * 1000
        print(f"{what:<44} least, median: {least:7.1f} {median:7.1f} ms")
    print("\n".join(claims.lines()))
    for what, mib in figures.memory.items():
        print(f"host memory of {what}: {statistics.median(mib):.0f} MiB")
    print(f"host memory of a hibernated sandbox: none, and {on_disk:.0f} MiB of disk")
    print(
        f"durable resume_ms={statistics.median(figures.resume) * 1000:.1f}"
        f" disk_resume_vs_boot={min(figures.disk_resume) / min(figures.boot):.3f}"
        f" save_ms={min(figures.first_save) * 1000:.1f}"
        f" ten_clones_vs_one={min(figures.ten_clones) / min(figures.one_clone):.2f}"
        f" claim_ms={statistics.median(claims.claim) * 1000:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default 3)")
    rounds = parser.parse_args().rounds
    image = Cache(Settings().cache).find()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        place = Path(name)
        place.chmod(0o711)
        bench = Bench(place, image)
        for number in range(rounds):
            asyncio.run(bench.round())
            figures = bench.figures
            boot, back = figures.boot[-1], figures.disk_resume[-1]
            say(f"round {number + 1}: boot {boot:.2f} s, back from disk {back:.2f} s")
        asyncio.run(bench.ten_boots())
        blocks = [
            file.stat().st_blocks * 512 / 2**20 for file in bench.snapshots.rglob("*") if file.is_file()
        ]
        (place / "daemon").mkdir()
        claims = claiming.measure(place / "daemon", CLAIMS)
        _print(bench.figures, sum(blocks) / len(list(bench.snapshots.iterdir())), claims)


if __name__ == "__main__":
    main()
