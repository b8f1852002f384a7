"""Groups of the real kernel, in the version that this machine has; and the files of the other one."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coatcheck.containers import cgroup
from coatcheck.containers.cgroup import SPARE_PROCESSES, Cgroup, Hierarchies
from coatcheck.sandbox.limits import MIB, LimitName

FOUND = cgroup.find()
real = pytest.mark.skipif(not (FOUND.unified or "pids" in FOUND.v1), reason="no cgroup is delegated here")


@pytest.fixture
def name() -> str:
    return f"coatcheck-test-{os.urandom(8).hex()}"


@pytest.fixture
def group(name: str) -> Iterator[Cgroup]:
    made = Cgroup.create(name, memory_mib=32, processes=10, cpus=1)
    assert made is not None
    yield made
    made.kill()
    made.close()
    assert left(name) == []


def left(name: str) -> list[Path]:
    places = [FOUND.unified, *FOUND.v1.values()]
    return [place / name for place in places if place and (place / name).exists()]


def start(code: str) -> subprocess.Popen[str]:
    """In Python, once a line comes in."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "import sys, os; sys.stdin.readline()\n" + code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def go(child: subprocess.Popen[str], group: Cgroup) -> tuple[int, str]:
    group.add(child.pid)
    out, _ = child.communicate("go\n", timeout=60)
    return child.returncode, out


@real
def test_what_is_in_it_is_held_and_hits_are_told_once(group: Cgroup) -> None:
    """Memory and processes, by the kernel's own count."""
    assert {LimitName.MEMORY, LimitName.PROCESSES} <= group.enforces
    assert group.hits() == set()
    bomb = """
n = 0
try:
    while True:
        if not os.fork():
            sys.stdin.read()
            os._exit(0)
        n += 1
except OSError:
    print(n)
"""
    child = start(bomb)
    group.add(child.pid)
    assert child.stdin and child.stdout
    child.stdin.write("go\n")
    child.stdin.flush()
    assert int(child.stdout.readline()) == 10 + SPARE_PROCESSES - 1
    assert group.hits() == {LimitName.PROCESSES}
    assert group.hits() == set()
    child.stdin.close()
    child.wait()
    child.stdout.close()
    code, _ = go(start("x = [bytearray(1 << 20) for _ in range(200)]"), group)
    assert code == -9
    assert group.hits() == {LimitName.MEMORY}


@real
def test_a_frozen_group_stands_still_until_it_thaws(group: Cgroup) -> None:
    """With everything in it."""
    child = start("import time\nwhile True: print(time.monotonic(), flush=True); time.sleep(0.001)")
    try:
        group.add(child.pid)
        assert group.pids() == (child.pid,)
        assert child.stdin and child.stdout
        child.stdin.write("go\n")
        child.stdin.flush()
        child.stdout.readline()
        if not group.freeze():
            pytest.skip("this kernel gives no freezer")
        frozen = time.monotonic()
        time.sleep(0.1)
        assert group.thaw()
        thawed = time.monotonic()
        seen = [float(child.stdout.readline()) for _ in range(400)]
        assert [at for at in seen if frozen + 0.02 < at < thawed - 0.02] == []
        assert seen[-1] > frozen
    finally:
        group.kill()
        child.communicate(timeout=20)


@real
def test_limits_move_while_it_runs_and_nobody_dies_of_it(group: Cgroup) -> None:
    """More is there at once; less than what is in use is refused, and the limit stays."""
    child = start(
        "kept = bytearray(40 << 20); print('has', flush=True); sys.stdin.readline(); del kept;"
        " print('gave', flush=True); sys.stdin.readline()"
    )
    try:
        assert group.set_memory(64)
        group.add(child.pid)
        assert child.stdin and child.stdout
        child.stdin.write("go\n")
        child.stdin.flush()
        assert child.stdout.readline() == "has\n"
        assert not group.set_memory(32)
        child.stdin.write("go\n")
        child.stdin.flush()
        assert child.stdout.readline() == "gave\n"
        assert group.set_memory(32) and group.set_memory(128) and group.set_memory(48)
        assert group.hits() == set() and child.poll() is None
    finally:
        group.kill()
        child.communicate(timeout=20)


@pytest.mark.skipif("cpu" not in FOUND.v1 and not FOUND.unified, reason="no CPU time is counted here")
def test_cpu_time_is_held_to_what_it_is_set_to(group: Cgroup) -> None:
    """Two that spin get two CPUs, or as many as there are, and then one."""
    if LimitName.CPUS not in group.enforces:
        pytest.skip("this kernel counts no CPU time for groups")
    spinning = [start("while True: pass") for _ in range(3)]
    try:
        for child in spinning:
            group.add(child.pid)
            assert child.stdin
            child.stdin.write("go\n")
            child.stdin.flush()
        shares = []
        for cpus in (1, 2):
            assert group.set_cpus(cpus)
            before, at = sum(map(cpu_seconds, spinning)), time.monotonic()
            time.sleep(1.0)
            shares.append((sum(map(cpu_seconds, spinning)) - before) / (time.monotonic() - at))
        assert shares[0] < 1.3
        assert shares[1] < 2.3
    finally:
        group.kill()
        for child in spinning:
            child.communicate(timeout=20)


def cpu_seconds(child: "subprocess.Popen[str]") -> float:
    words = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@real
def test_a_group_that_a_killed_supervisor_left_is_removed_by_name(name: str) -> None:
    """With the processes that are still in it; and there may be none of that name."""
    group = Cgroup.create(name, memory_mib=32, processes=10, cpus=1)
    assert group is not None and left(name)
    with pytest.raises(FileExistsError):
        Cgroup.create(name, memory_mib=32, processes=10, cpus=1)
    child = start("import time; time.sleep(60)")
    group.add(child.pid)
    group.freeze()  # as of one that was paused: it must not stay for good
    cgroup.remove(name)
    child.communicate(timeout=20)
    assert child.returncode == -9 and left(name) == []
    cgroup.remove(name)


def test_where_nothing_is_delegated_there_is_no_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The caller must say so; nobody is told of limits that nobody holds."""
    monkeypatch.setattr(cgroup, "find", lambda: Hierarchies(None, {}))
    assert Cgroup.create("x", memory_mib=32, processes=10, cpus=1) is None
    monkeypatch.setattr(cgroup, "find", lambda: Hierarchies(tmp_path / "missing", {}))
    assert Cgroup.create("x", memory_mib=32, processes=10, cpus=1) is None


class Kernel:
    """v2's files of one group, as its documentation has them (Documentation/admin-guide/cgroup-v2.rst)."""

    def __init__(self, place: Path, controllers: str) -> None:
        self.place = place
        self.place.mkdir()
        for file, text in {
            "cgroup.controllers": controllers, "cgroup.procs": "", "cgroup.freeze": "0",
            "cgroup.events": "populated 1\nfrozen 1\n", "memory.max": "max", "memory.swap.max": "max",
            "memory.events": "low 0\noom 2\noom_kill 1\n", "pids.max": "max", "pids.events": "max 0\n",
            "cpu.max": "max 100000",
        }.items():  # fmt: skip
            (place / file).write_text(text)

    def __getitem__(self, file: str) -> str:
        return (self.place / file).read_text().strip()


def test_version_2_is_told_the_same_in_its_own_words(tmp_path: Path) -> None:
    """Which this machine's kernel may not have; there is one hierarchy, and swap is not memory."""
    kernel = Kernel(tmp_path / "x", "cpuset cpu io memory pids")
    group = Cgroup(tmp_path / "x", {})
    group.limit(32, 10, 2)
    assert group.enforces == {LimitName.MEMORY, LimitName.PROCESSES, LimitName.CPUS}
    assert (kernel["memory.max"], kernel["memory.swap.max"]) == (str(32 * MIB), "0")
    assert (kernel["pids.max"], kernel["cpu.max"]) == (str(10 + SPARE_PROCESSES), "200000 100000")
    assert group.hits() == {LimitName.MEMORY}
    (tmp_path / "x/pids.events").write_text("max 3\n")
    assert group.hits() == {LimitName.PROCESSES}
    assert group.freeze() and kernel["cgroup.freeze"] == "1"


def test_version_2_takes_no_memory_that_is_in_use(tmp_path: Path) -> None:
    """Its kernel would end processes for it."""
    kernel = Kernel(tmp_path / "x", "cpu memory pids")
    group = Cgroup(tmp_path / "x", {})
    group.limit(64, 10, 2)
    (tmp_path / "x/memory.current").write_text(str(40 * MIB))
    assert not group.set_memory(32) and kernel["memory.max"] == str(64 * MIB)
    assert group.set_memory(96) and kernel["memory.max"] == str(96 * MIB)
    assert group.set_cpus(4) and kernel["cpu.max"] == "400000 100000"


def test_what_version_2_does_not_delegate_is_not_claimed(tmp_path: Path) -> None:
    """systemd gives users memory and pids, and often no cpu."""
    kernel = Kernel(tmp_path / "x", "memory pids")
    group = Cgroup(tmp_path / "x", {})
    group.limit(32, 10, 2)
    assert group.enforces == {LimitName.MEMORY, LimitName.PROCESSES}
    assert not group.set_cpus(1) and kernel["cpu.max"] == "max 100000"


def test_control_groups_that_are_missing_or_read_only_are_not_writable(tmp_path: Path) -> None:
    """One line of /proc/self/mountinfo a hierarchy."""
    line = "31 23 0:28 / {} rw,relatime - {} x rw\n"
    for lines, writable in (
        ((), False),
        ((("/nowhere", "cgroup2"),), False),
        (((str(tmp_path), "cgroup2"),), True),
        (((str(tmp_path), "cgroup"), ("/nowhere", "cgroup")), False),
        (((str(tmp_path), "cgroup"), ("/proc", "proc")), True),
    ):
        (tmp_path / "mountinfo").write_text("".join(line.format(*each) for each in lines))
        assert cgroup.writable(tmp_path / "mountinfo") is writable
