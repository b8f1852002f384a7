"""The namespace backend as a machine: it starts, pauses, ends, and leaves nothing; what it refuses to be."""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from coatcheck.containers import cgroup, oci, processes
from coatcheck.containers.container import FIRST_HOST_UID, ContainerMachine
from coatcheck.decision.session import Isolation
from coatcheck.launcher.channel import StreamReset
from coatcheck.sandbox.machine import MachineError, RemainKind, Volume
from tests.containers.namespaces import sandbox, spec

pytestmark = pytest.mark.needs_debian("bwrap", "runc")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="several users need root on the host")


def of_group(name: str) -> list[str]:
    """What the kernel knows of a cgroup called so."""
    return [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{name}")]


async def test_a_sandbox_runs_commands_as_its_users(agent_program: Path, tmp_path: Path) -> None:
    """Each with a home of its own, and no word of the host's."""
    async with sandbox(tmp_path, agent_program) as inside:
        names = ("agent", "tool") if os.geteuid() == 0 else ("agent",)
        assert inside.machine.identities == names
        ran = await inside.sh("id -un; id -u; pwd; echo x > file; ls; hostname; ls /home")
        assert ran.out.split() == ["agent", "1000", "/home/agent", "file", "sandbox", *names]
        assert inside.machine.isolation is Isolation.NAMESPACE


@as_root
async def test_it_is_nobody_on_the_host(agent_program: Path, tmp_path: Path) -> None:
    """Also where we are root: not one process of it has a user or group that anything else has."""
    async with sandbox(tmp_path, agent_program) as inside:
        for identity in ("agent", "tool"):
            await inside.started("sh", "-c", "echo up; exec sleep 60", identity=identity)
        pids = [remain.pid for remain in await inside.machine.remains() if remain.pid]
        assert len(pids) >= 3
        for pid in pids:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            for line in lines:
                if line.startswith(("Uid:", "Gid:")):
                    assert min(map(int, line.split()[1:])) >= FIRST_HOST_UID


async def test_nothing_is_left_when_it_stops(agent_program: Path, tmp_path: Path) -> None:
    """No process, however it was started, and no group; stopping twice is nothing."""
    async with sandbox(tmp_path, agent_program) as inside:
        await inside.sh("setsid sleep 60 >/dev/null 2>&1 & (sleep 60 &) >/dev/null 2>&1; true")
        pids = [remain.pid for remain in await inside.machine.remains() if remain.pid]
        assert len(pids) >= 3
        await inside.machine.stop()
        assert await inside.machine.wait() == "it was stopped"
        assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
        assert of_group(inside.group) == []
        await inside.machine.stop()
        with pytest.raises(MachineError, match="has ended"):
            await inside.machine.remains()


async def test_a_paused_sandbox_executes_nothing(agent_program: Path, tmp_path: Path) -> None:
    """Until it is resumed; then it goes on where it was."""
    async with sandbox(tmp_path, agent_program) as inside:
        stream = await inside.start("sh", "-c", "while :; do date +%s.%N > /tmp/now; done")
        files = {remain.name: remain.path for remain in await inside.machine.remains() if remain.path}
        now = files["files in /tmp"] / "now"
        while not (now.exists() and now.read_text()):
            await asyncio.sleep(0.01)
        await inside.machine.pause()
        await inside.machine.pause()
        before = now.read_bytes()
        await asyncio.sleep(0.2)
        assert now.read_bytes() == before
        await inside.machine.resume()
        while now.read_bytes() in (before, b""):
            await asyncio.sleep(0.01)
        stream.reset("done")


async def test_a_paused_sandbox_can_be_stopped(agent_program: Path, tmp_path: Path) -> None:
    """A frozen process does not die until it thaws (cgroup v1)."""
    async with sandbox(tmp_path, agent_program) as inside:
        await inside.machine.pause()
        await inside.machine.stop()
        assert of_group(inside.group) == []


async def test_what_remains_is_its_processes_and_where_it_may_write(
    agent_program: Path, tmp_path: Path
) -> None:
    """As the host reads them: a file's content and a process's environment."""
    async with sandbox(tmp_path, agent_program) as inside:
        script = "echo planted > /home/agent/x; MARK=planted exec sh -c 'echo written; sleep 60'"
        await inside.started("sh", "-c", script)
        remains = await inside.machine.remains()
        pids = [remain.pid for remain in remains if remain.kind is RemainKind.PROCESS]
        environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in pids]
        assert any(b"MARK=planted" in content for content in environments)
        homes = [remain.path for remain in remains if remain.name == "files in /home"]
        assert homes[0] and (homes[0] / "agent/x").read_text() == "planted\n"


async def test_a_supervisor_that_is_killed_takes_it_along(agent_program: Path, tmp_path: Path) -> None:
    """SIGKILL leaves nobody to clean up: the kernel does, by the parent's death."""
    driver = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from tests.containers.namespaces import sandbox\n"
        "async def main():\n"
        f" async with sandbox(Path({str(tmp_path)!r}), Path({str(agent_program)!r})) as inside:\n"
        "  await inside.started('sh', '-c', 'echo up; exec sleep 60')\n"
        "  print(inside.group, *[r.pid for r in await inside.machine.remains() if r.pid], flush=True)\n"
        "  await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    child = subprocess.Popen([sys.executable, "-c", driver], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout
        group, *words = child.stdout.readline().split()
        pids = [int(word) for word in words]
        assert len(pids) >= 2
    finally:
        child.kill()
        child.wait()
    deadline = time.monotonic() + 20
    while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    assert left == []
    cgroup.remove(group)
    assert of_group(group) == []


async def test_nothing_that_we_have_open_is_open_inside(agent_program: Path, tmp_path: Path) -> None:
    """One descriptor of a directory of the host, and there is no sandbox."""
    leak = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    os.set_inheritable(leak, True)
    try:
        async with sandbox(tmp_path, agent_program) as inside:
            pids = processes.tree(inside.machine.process.first)
            for pid in pids:
                open_here = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
                assert {name.partition(":")[0] for name in open_here} <= {
                    "/dev/null", "socket", "pipe", "anon_inode"
                }  # fmt: skip
            ran = await inside.sh("ls /proc/self/fd | wc -l")
            assert ran.out.strip() == "4"  # 0, 1, 2, and the directory that ls lists
    finally:
        os.close(leak)


async def test_an_agent_that_dies_ends_the_sandbox_and_says_how(agent_program: Path, tmp_path: Path) -> None:
    """wait tells it to the watcher."""
    async with sandbox(tmp_path, agent_program) as inside:
        os.kill(inside.machine.process.first, signal.SIGKILL)
        assert await inside.machine.wait() == "the sandbox's first process was killed by signal 9"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("#!/bin/sh\necho it broke >&2; exit 3\n", "ended before its agent spoke: it broke"),
        ("#!/bin/sh\nexit 3\n", "ended before its agent spoke: exit code 3"),
        ("#!/nowhere\n", "[Nn]o such file"),
        ("#!/bin/sh\nsleep 60\n", "said nothing for 0.5 s"),
    ],
)
async def test_a_sandbox_that_does_not_come_up_says_why_and_leaves_nothing(
    agent_program: Path, tmp_path: Path, content: str, message: str
) -> None:
    """What its first process wrote, if anything; never a hang."""
    (tmp_path / "agent").write_text(content)
    wanted = replace(spec(), boot_seconds=0.5 if "sleep" in content else 60)
    name = secrets.token_hex(8)
    machine = ContainerMachine(wanted, tmp_path / name, agent=tmp_path / "agent")
    with pytest.raises(MachineError, match=message):
        await machine.start()
    assert of_group(f"coatcheck-{name}") == []


async def test_what_it_cannot_be_it_refuses_with_a_way_out(agent_program: Path, tmp_path: Path) -> None:
    """Never a weaker thing in silence: a credential may have been granted for what was asked."""
    volume = Volume(tmp_path, "tenant", "data", "/data", 10)
    (tmp_path / "image").mkdir()
    for wanted, words in (
        (replace(spec(), isolation=Isolation.HARDWARE), "not isolation of class hardware"),
        (replace(spec(), volumes=(volume,)), "only a microVM has"),
        (spec(image=tmp_path / "image"), "no directory `root`"),
    ):
        with pytest.raises(MachineError, match=words) as refused:
            await ContainerMachine(wanted, tmp_path / "x", agent=agent_program).start()
        assert refused.value.hint
    with pytest.raises(MachineError, match="cannot be read"):
        await ContainerMachine(spec(), tmp_path / "x", agent=tmp_path / "none").start()


async def test_an_images_root_directory_takes_the_place_of_the_hosts_programs(
    agent_program: Path, tmp_path: Path
) -> None:
    """Read-only, with the same edges."""
    root = tmp_path / "image" / "root"
    for name in ("proc", "dev", "run", "tmp", "home", "etc", "var/tmp", "bin"):
        (root / name).mkdir(parents=True)
    (root / "etc/passwd").write_text("image's own")
    source = tmp_path / "hello.c"
    source.write_text(
        '#include <stdio.h>\nint main(void) { return !fopen("/new", "w") + puts("hello") - 7; }\n'
    )
    subprocess.run(["cc", "-static", "-o", root / "bin/hello", source], check=True)
    for path in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        with contextlib.suppress(PermissionError):
            path.chmod(0o755)  # who runs it is nobody on the host
    async with sandbox(tmp_path, agent_program, spec(image=tmp_path / "image")) as inside:
        ran = await inside.run("/bin/hello")
        assert (ran.code, ran.out) == (0, "hello\n")
        with pytest.raises(StreamReset, match="cannot run /bin/sh"):
            await inside.run("/bin/sh")


@as_root
async def test_an_ordinary_user_has_one_too_and_is_told_what_is_not_held(
    agent_program: Path, tmp_path: Path
) -> None:
    """He can map himself only, and his host may delegate no cgroup; then rlimits hold, and it says so."""
    code = """
import asyncio, ctypes, os, sys
ctypes.CDLL(None).prctl(47, 4, 0, 0, 0)  # from here on, children have no right, either
from pathlib import Path
from tests.containers.namespaces import sandbox
async def main():
    async with sandbox(Path(sys.argv[1]), Path(sys.argv[2]), identities=("agent",)) as inside:
        print(inside.machine.identities, len(inside.machine.unenforced), *inside.machine.unenforced)
        print((await inside.sh("id -u; grep CapEff /proc/self/status")).out.split())
        print((await inside.python("import os\\ntry: os.open('/proc/1/mem', 0)\\nexcept OSError as e: print(e.errno)")).out.strip())
        print((await inside.sh("nft add table inet x; echo $?")).out.strip())
        bomb = await inside.python("import os,time\\nn=0\\ntry:\\n while True:\\n  if not os.fork(): time.sleep(20); os._exit(0)\\n  n+=1\\nexcept OSError as e: print(e.errno, n<50)")
        print(bomb.out.strip())
        hog = await inside.python("try: x = bytearray(80<<20)\\nexcept MemoryError: print('no memory')")
        print(hog.out.strip())
asyncio.run(main())
"""  # noqa: E501
    # This interpreter may be in root's home: it alone may read there, and says nothing of it to its children.
    reading = ("--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search")
    become = ("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", *reading)
    done = subprocess.run(
        [*become, sys.executable, "-c", code, "/nowhere", agent_program],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("('agent',) 3 each process has 64 MiB of memory, not all together")
    assert lines[1:] == [
        "['1000', 'CapEff:', '0000000000000000']",
        "13",
        "1",
        "11 True",
        "no memory",
    ]


@as_root
async def test_the_first_one_ever_is_there_for_its_users_whatever_the_umask(
    agent_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Supervisors have 077, and make the directory of roots, which must let in users that are unknown
    here."""
    roots = Path(f"/run/coatcheck-roots-{tmp_path.name}-{os.getpid()}")
    monkeypatch.setattr(oci, "ROOTS", roots)
    before = os.umask(0o077)
    try:
        async with sandbox(tmp_path, agent_program) as inside:
            assert (await inside.sh("id -u")).out == "1000\n"
    finally:
        os.umask(before)
        shutil.rmtree(roots)


@as_root
async def test_root_without_control_groups_has_one_by_bubblewrap(agent_program: Path, tmp_path: Path) -> None:
    """As in a Kubernetes pod, where they are read-only: runc makes nothing there, and root lacks the rights
    over other users' limits. It is somebody else on the host all the same, and says what is not held."""
    code = """
import asyncio, sys
from pathlib import Path
from coatcheck.containers import container
from coatcheck.decision.session import Isolation
from tests.containers.namespaces import sandbox
async def main():
    assert container.find_program(Isolation.NAMESPACE).endswith("bwrap")
    async with sandbox(Path(sys.argv[1]), Path(sys.argv[2]), identities=("agent",)) as inside:
        machine = inside.machine
        assert machine.identities == container.identities(Isolation.NAMESPACE) == ("agent",)
        print(len(machine.unenforced), *machine.unenforced)
        print((await inside.sh("id -u; nice; grep CapEff /proc/self/status; ulimit -p")).out.split())
        pids = [remain.pid for remain in await machine.remains() if remain.pid]
        lines = [Path(f"/proc/{pid}/status").read_text().splitlines() for pid in pids]
        ids = [int(i) for each in lines for line in each if line[:4] in ("Uid:", "Gid:") for i in line.split()[1:]]
        print(min(ids) >= container.FIRST_HOST_UID)
asyncio.run(main())
"""  # noqa: E501
    closed = (
        'mount --make-rprivate / && grep -E " - cgroup2? " /proc/self/mountinfo | cut -d" " -f5'
        ' | while read -r place; do mount -o remount,bind,ro "$place" || exit; done && exec "$@"'
    )
    pod = ("setpriv", "--bounding-set=-sys_resource,-sys_nice", "--inh-caps=-sys_resource,-sys_nice")
    in_pod = ("unshare", "--mount", "sh", "-c", closed, "sh", *pod)
    done = subprocess.run(
        [*in_pod, sys.executable, "-c", code, tmp_path, agent_program],
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("3 each process has 64 MiB of memory, not all together: this root may make")
    assert lines[1:] == ["['1000', '10', 'CapEff:', '0000000000000000', '50']", "True"]


async def test_one_that_could_not_be_paused_is_not_called_paused(
    tmp_path: Path, agent_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An inspection would believe it; and whatever was stopped by then goes on with `resume`."""
    async with sandbox(tmp_path, agent_program) as inside:
        machine = inside.machine
        group, machine.group = machine.group, None  # as for an ordinary user
        try:
            monkeypatch.setattr(processes, "STOP_SECONDS", 0.0)
            for _ in range(2):
                with pytest.raises(MachineError, match="cannot be paused"):
                    await machine.pause()
            monkeypatch.undo()
            await machine.pause()
            await machine.resume()
            assert (await inside.run("echo", "on")).out == "on\n"
        finally:
            machine.group = group
