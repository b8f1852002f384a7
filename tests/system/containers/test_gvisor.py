"""gVisor as a machine, with the real agent in it: it runs, pauses, ends, and its kernel is not the host's."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from coatcheck.containers.container import ContainerMachine
from coatcheck.decision.session import Isolation
from coatcheck.launcher.channel import ChannelBroken, StreamReset
from coatcheck.sandbox.limits import LimitName
from coatcheck.sandbox.machine import MachineError, RemainKind
from tests.containers.namespaces import Inside, sandbox, spec

pytestmark = pytest.mark.needs_debian("runsc")
WANTED = spec(isolation=Isolation.GVISOR)
SECONDS = 30.0


@pytest.fixture
async def inside(tmp_path: Path, agent_program: Path) -> AsyncIterator[Inside]:
    async with sandbox(tmp_path, agent_program, WANTED, identities=("agent",)) as found:
        yield found


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists() and _not_dead(pid)]


def _not_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


async def test_a_command_runs_on_a_kernel_of_its_own(inside: Inside) -> None:
    """As its user, on loopback alone, with none of the host's processes and files."""
    assert inside.machine.isolation is Isolation.GVISOR and inside.machine.identities == ("agent",)
    ran = await inside.sh("id -un; pwd; echo x > file && cat file; dmesg | grep -c gVisor; uname -v")
    name, home, content, lines, *version = ran.out.split()
    assert (name, home, content) == ("agent", "/home/agent", "x") and int(lines) > 0
    assert " ".join(version) != os.uname().version
    ran = await inside.sh(
        f"kill -0 {os.getpid()} 2>&1; cut -d: -f1 -s /proc/net/dev | tail -n +1; cat /etc/shadow"
    )
    assert ran.code != 0 and ran.out.split()[-1] == "lo"
    assert (await inside.sh("echo y > /usr/x")).code != 0
    assert (await inside.sh("echo y > /etc/passwd")).code != 0
    assert (await inside.sh("grep -E '^Cap(Eff|Prm|Bnd)' /proc/self/status")).out.split()[1::2] == [
        "0" * 16
    ] * 3


async def test_the_only_ways_out_are_the_channels(inside: Inside) -> None:
    """The proxy's port and the metadata service: streams that the host judges. Nothing else leads away."""
    for address, kind in ((("127.0.0.1", 3128), "proxy"), (("169.254.169.254", 80), "metadata")):
        inside.opened.clear()
        await inside.python(f"import socket\nsocket.create_connection({address!r}).recv(1)")
        assert [stream.kind for stream in inside.opened] == [kind]
        assert inside.opened[0].get("identity") == "agent"
    inside.opened.clear()
    code = (
        "import socket\ntry: socket.create_connection(('192.0.2.1', 80), 5)\nexcept OSError as e: print('no')"
    )
    assert (await inside.python(code)).out == "no\n" and inside.opened == []


async def test_a_paused_one_executes_nothing_and_goes_on(inside: Inside) -> None:
    """gVisor's own pause, of all its tasks."""
    stream = await inside.start("sh", "-c", "while :; do echo tick; sleep 0.02; done")
    assert await stream.read() is not None
    await inside.machine.pause()
    await inside.machine.pause()
    await asyncio.sleep(0.3)
    while True:
        try:
            async with asyncio.timeout(0.3):
                await stream.read()
        except TimeoutError:
            break
    await inside.machine.resume()
    async with asyncio.timeout(SECONDS):
        assert await stream.read() is not None
    stream.reset("done")


async def test_what_remains_of_it_holds_what_was_in_its_memory_and_files(inside: Inside) -> None:
    """An inspection finds there what a program had, running or written down."""
    await inside.started("sh", "-c", "printf 'planted-%s' here > /home/agent/x; echo written; sleep 60")
    assert (await inside.sh("cat /home/agent/x")).out == "planted-here"
    await inside.machine.pause()
    remains = await inside.machine.remains()
    memory = [each.path for each in remains if each.kind is RemainKind.MEMORY]
    assert any(each.pid for each in remains)
    assert any(b"planted-here" in path.read_bytes() for path in memory if path is not None)


async def test_nothing_is_left_when_it_stops(inside: Inside) -> None:
    """No process, no group, and stopping twice is nothing."""
    await inside.started("sh", "-c", "echo up; sleep 60")
    pids = [each.pid for each in await inside.machine.remains() if each.pid]
    assert pids
    await inside.machine.pause()
    await inside.machine.stop()
    deadline = time.monotonic() + SECONDS
    while alive(pids):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert list(Path("/sys/fs/cgroup").glob(f"**/{inside.group}")) == []
    await inside.machine.stop()
    with pytest.raises(MachineError, match="has ended"):
        await inside.machine.remains()


async def test_a_memory_hog_ends_within_its_limit(inside: Inside) -> None:
    """The host's kernel counts gVisor and all that is in it."""
    if LimitName.MEMORY not in inside.machine.enforced():
        pytest.skip("no cgroup is delegated here")
    hog = "x = [bytearray(1 << 20) for _ in range(1200)]; print('all')"
    out = ""
    with contextlib.suppress(StreamReset, ChannelBroken, TimeoutError):  # mostly all of gVisor ends
        async with asyncio.timeout(SECONDS):
            out = (await inside.python(hog)).out
    assert out == ""
    assert LimitName.MEMORY in inside.machine.hits()


async def test_a_supervisor_that_is_killed_takes_it_along(agent_program: Path, tmp_path: Path) -> None:
    """SIGKILL leaves nobody to clean up: the agent's channel is gone, so it ends, and gVisor with it."""
    driver = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from tests.containers.namespaces import sandbox\n"
        "from tests.system.containers.test_gvisor import WANTED\n"
        "async def main():\n"
        f" async with sandbox(Path({str(tmp_path)!r}), Path({str(agent_program)!r}), WANTED,"
        " identities=('agent',)) as inside:\n"
        "  await inside.started('sh', '-c', 'echo up; sleep 60')\n"
        "  print(*[r.pid for r in await inside.machine.remains() if r.pid], flush=True)\n"
        "  await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    child = subprocess.Popen([sys.executable, "-c", driver], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout
        pids = [int(word) for word in child.stdout.readline().split()]
        assert pids
    finally:
        child.kill()
        child.wait()
    deadline = time.monotonic() + SECONDS
    while alive(pids) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    assert alive(pids) == []


async def test_what_it_cannot_be_it_refuses_with_a_way_out(agent_program: Path, tmp_path: Path) -> None:
    """A policy's filesystem needs bubblewrap around each command; no other isolation is passed off as it."""
    machine = ContainerMachine(WANTED, tmp_path / "x", agent=agent_program, nests=True)
    with pytest.raises(MachineError, match="which gVisor cannot run") as refused:
        await machine.start()
    assert refused.value.hint
    other = replace(WANTED, isolation=Isolation.EMULATED)
    with pytest.raises(MachineError, match="not isolation of class emulated"):
        await ContainerMachine(other, tmp_path / "x", agent=agent_program).start()


async def test_it_is_refused_with_a_hint_where_it_is_not_installed(
    agent_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never a namespace instead: a credential may have been granted for what was asked."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match="runsc is missing") as refused:
        await ContainerMachine(WANTED, tmp_path / "x", agent=agent_program).start()
    assert "apt-get install runsc" in str(refused.value.hint)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is taken by root")
async def test_an_ordinary_user_has_one_too_and_is_told_what_is_not_held(
    agent_program: Path, tmp_path: Path
) -> None:
    """runsc --rootless: no cgroup is delegated, and the sandbox's state says so."""
    code = """
import asyncio, ctypes, os, sys
ctypes.CDLL(None).prctl(47, 4, 0, 0, 0)  # from here on, children have no right, either
from pathlib import Path
from tests.containers.namespaces import sandbox
from tests.system.containers.test_gvisor import WANTED
async def main():
    async with sandbox(Path(sys.argv[1]), Path(sys.argv[2]), WANTED, identities=("agent",)) as inside:
        print(inside.machine.identities, len(inside.machine.unenforced))
        print((await inside.sh("id -u; dmesg | grep -c 'Starting gVisor'")).out.split())
asyncio.run(main())
"""
    place = tmp_path / "theirs"
    place.mkdir()
    os.chown(place, 54321, 54321)
    for path in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        path.chmod(path.stat().st_mode | 0o011)
    reading = ("--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search")
    become = ("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", *reading)
    done = subprocess.run(
        [*become, sys.executable, "-c", code, place, agent_program],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["('agent',) 3", "['1000', '1']"]
