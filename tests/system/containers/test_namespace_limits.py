"""A command that goes wild in the namespace backend meets its limit and is told; the sandbox lives on."""

import asyncio
import os
import resource
import time
from pathlib import Path

import pytest

from coatcheck.containers import cgroup
from coatcheck.launcher.channel import Chunk
from coatcheck.sandbox.limits import MIB, LimitName, OutputBound
from tests.containers.namespaces import sandbox, spec

HELD = {
    name
    for name, controller in (
        (LimitName.MEMORY, "memory"),
        (LimitName.PROCESSES, "pids"),
        (LimitName.CPUS, "cpu"),
    )
    if cgroup.find().unified or controller in cgroup.find().v1
}
pytestmark = [
    pytest.mark.needs_debian("bwrap", "runc"),
    pytest.mark.skipif(
        len(HELD) < 3, reason="no cgroup is delegated here; rlimits are tested as another user"
    ),
]
IDENTITIES = ("agent", "tool") if os.geteuid() == 0 else ("agent",)


async def test_a_fork_bomb_gets_no_more_than_its_processes(tmp_path: Path, agent_program: Path) -> None:
    """However it forks; the sandbox's owner can still end it, and is told why it got nowhere."""
    bomb = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
    async with sandbox(tmp_path, agent_program, spec(processes=30), identities=IDENTITIES) as inside:
        assert inside.machine.hits() == set()
        stream = await inside.start("python3", "-I", "-S", "-c", bomb)
        deadline = time.monotonic() + 30
        while LimitName.PROCESSES not in inside.machine.hits():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        count = len([remain for remain in await inside.machine.remains() if remain.pid])
        assert count <= 30 + cgroup.SPARE_PROCESSES
        stream.reset("done")
        while len([remain for remain in await inside.machine.remains() if remain.pid]) > 1:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        assert (await inside.sh("echo alive")).out == "alive\n"


HOGS = {
    "a process": "x = [bytearray(1 << 20) for _ in range(300)]",
    "a file in memory": """
import os
file = os.memfd_create("x")
for _ in range(300):
    os.write(file, bytes(1 << 20))
""",
    "many processes": """
import os
for _ in range(8):
    if not os.fork():
        x = [bytearray(1 << 20) for _ in range(60)]
        os._exit(0)
for _ in range(8):
    if os.wait()[1]:
        os._exit(9)
""",
}


@pytest.mark.parametrize("hog", HOGS.values(), ids=HOGS)
async def test_a_memory_hog_is_killed_and_the_agent_is_not(
    tmp_path: Path, agent_program: Path, hog: str
) -> None:
    """All of the sandbox's memory together counts, wherever it is put."""
    async with sandbox(tmp_path, agent_program, identities=IDENTITIES) as inside:
        ran = await inside.python(hog)
        assert ran.signal == 9 or ran.code == 9
        assert LimitName.MEMORY in inside.machine.hits()
        assert inside.machine.hits() == set()  # it was told once
        assert (await inside.sh("echo alive")).out == "alive\n"


async def test_a_disk_filler_meets_a_full_disk(tmp_path: Path, agent_program: Path) -> None:
    """No place that can be written has more than its share, and space that is freed is there again."""
    async with sandbox(tmp_path, agent_program, spec(disk_mib=16), identities=IDENTITIES) as inside:
        written = 0
        for place in ("/home/agent", "/tmp"):
            ran = await inside.sh(f"dd if=/dev/zero of={place}/x bs=64k; stat -c %s {place}/x")
            assert "No space left" in ran.errors
            written += int(ran.out)
        assert 15 * MIB <= written <= 16 * MIB
        assert (await inside.sh("dd if=/dev/zero of=/home/agent/y bs=64k")).limit == "disk"
        assert (
            await inside.sh("dd if=/dev/zero of=/dev/shm/x bs=64k; stat -c %s /dev/shm/x")
        ).out == f"{16 * MIB}\n"
        assert (await inside.sh("rm /tmp/x && echo fine > /tmp/x && cat /tmp/x")).out == "fine\n"


async def test_an_output_flood_waits_for_its_reader(tmp_path: Path, agent_program: Path) -> None:
    """It stands still at what the channel has credit for: nobody's memory is filled by it."""
    async with sandbox(tmp_path, agent_program, identities=IDENTITIES) as inside:
        stream = await inside.start(
            "sh", "-c", "yes coatcheck | tee /dev/stderr | wc -c > /tmp/count; sleep 60"
        )
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await asyncio.sleep(1)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024
        assert (await inside.sh("echo alive")).out == "alive\n"
        stream.reset("done")


async def test_an_output_flood_ends_at_its_limit(tmp_path: Path, agent_program: Path) -> None:
    """The reader counts, and its last word ends the command with all that it started."""
    async with sandbox(tmp_path, agent_program, identities=IDENTITIES) as inside:
        bound, taken = OutputBound(3 * MIB), 0
        stream = await inside.start("yes", "coatcheck")
        while not bound.exceeded:
            piece = await stream.read()
            assert isinstance(piece, Chunk)
            taken += bound.allow(len(piece.data))
        stream.reset("done")
        assert taken == 3 * MIB
        deadline = time.monotonic() + 20
        while (await inside.sh("pidof yes")).code == 0:
            assert time.monotonic() < deadline


async def test_a_busy_sandbox_leaves_the_other_cpus_to_others(tmp_path: Path, agent_program: Path) -> None:
    """Three processes that compute get no more time together than one CPU has."""
    busy = (
        "import os, time\nr, w = os.pipe()\nfor _ in range(3):\n if not os.fork():\n"
        "  end = time.monotonic() + 1.5\n  while time.monotonic() < end: pass\n"
        "  os.write(w, b'%f\\n' % time.process_time()); os._exit(0)\n"
        "for _ in range(3): os.wait()\nprint(os.read(r, 1000).decode())"
    )
    async with sandbox(tmp_path, agent_program, identities=IDENTITIES) as inside:
        started = time.monotonic()
        used = sum(map(float, (await inside.python(busy)).out.split()))
        assert 0 < used <= (time.monotonic() - started) * 1.15 + 0.1
