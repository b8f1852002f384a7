"""The microVM for real: a guest that does what it is told, the jail around its QEMU, every way it ends.

One guest serves most tests; boots are what takes the time.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from coatcheck.containers import cgroup
from coatcheck.decision.session import Isolation
from coatcheck.launcher.microvm import MicroVM
from coatcheck.sandbox.machine import MachineError, MachineSpec, RemainKind, Volume
from coatcheck.sandbox.resources import Resources
from tests.launcher import tiny

pytestmark = [
    pytest.mark.needs_debian("qemu-system-x86_64", "bwrap", "mke2fs", "cc"),
    pytest.mark.asyncio(loop_scope="module"),
]

EVERY_NAMESPACE = ("user", "pid", "net", "mnt", "ipc", "uts", "cgroup")
BOOT_SECONDS = 120.0
"""On a machine that many share, without KVM."""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("volumes")
    place.chmod(0o700)
    return place


def wanted(image: Path | None, *volumes: Volume, boot_seconds: float = BOOT_SECONDS) -> MachineSpec:
    return MachineSpec(
        isolation=Isolation.EMULATED,
        image=image,
        resources=Resources(memory_mib=192, cpus=1, disk_mib=64, processes=64),
        volumes=volumes,
        boot_seconds=boot_seconds,
    )


class Running:
    """A machine with its guest."""

    def __init__(self, machine: MicroVM, guest: tiny.Guest, directory: Path) -> None:
        self.machine = machine
        self.guest = guest
        self.directory = directory

    def proc(self, name: str) -> Path:
        return Path(f"/proc/{self.machine.pid}/{name}")


@contextlib.asynccontextmanager
async def running(place: Path, image: Path, *volumes: Volume) -> AsyncIterator[Running]:
    # A name that no other test, in whatever process, has for its control group at the same time.
    directory = place / secrets.token_hex(8)
    directory.mkdir(mode=0o700)
    machine = MicroVM(wanted(image, *volumes), directory)
    guest = tiny.Guest(await machine.start())
    try:
        assert await guest.line() == "hello"
        yield Running(machine, guest, directory)
    finally:
        guest.close()
        await machine.stop()


@pytest.fixture(scope="module")
def volume(store: Path) -> Volume:
    return Volume(store, "acme", "work", "/work", 32)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    image: Path, volume: Volume, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Running]:
    """The guest of most tests."""
    async with running(tmp_path_factory.mktemp("shared"), image, volume) as it:
        yield it


# --- the jail, around a QEMU that runs -------------------------------------------------------------------


async def test_qemu_is_nobody(shared: Running) -> None:
    """No user of this host, no group, no capability, and no way to one."""
    status = dict(line.split(":\t", 1) for line in shared.proc("status").read_text().splitlines())
    users = {int(user) for user in status["Uid"].split()} | {int(group) for group in status["Gid"].split()}
    assert 0 not in users
    if os.geteuid() == 0:
        assert min(users) >= 0x70000000 or users == {65534}
        assert status["Groups"].strip() == ""
    assert [int(status[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")] == [0] * 5
    assert status["NoNewPrivs"] == "1"


async def test_qemu_is_under_its_own_filter_of_system_calls(shared: Running) -> None:
    """Mode 2: what it needs after its start, and no program, no right, no scheduler."""
    for task in shared.proc("task").iterdir():
        assert "Seccomp:\t2" in (task / "status").read_text(), task


async def test_qemu_is_in_namespaces_of_its_own(shared: Running) -> None:
    """Each of them."""
    for kind in EVERY_NAMESPACE:
        assert shared.proc(f"ns/{kind}").readlink() != Path(f"/proc/self/ns/{kind}").readlink(), kind


async def test_qemu_has_no_network(shared: Running) -> None:
    """Loopback, which is down, and no route."""
    lines = shared.proc("net/dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in lines] == ["lo"]
    assert len(shared.proc("net/route").read_text().splitlines()) == 1


async def test_qemu_sees_its_own_files_and_nothing_of_the_host(shared: Running) -> None:
    """No /etc with its shadow, no home, no other program, no run directory."""
    root = shared.proc("root")
    assert {path.name for path in root.iterdir()} <= {"dev", "lib", "lib64", "proc", "usr"}
    assert not (root / "etc/shadow").exists()
    assert {path.name for path in (root / "usr").iterdir()} <= {"bin", "lib", "share"}
    assert [path.name for path in (root / "usr/bin").iterdir()] == ["qemu-system-x86_64"]
    assert {path.name for path in (root / "proc").iterdir() if path.name.isdigit()} == {"1"}


async def test_qemu_can_write_nothing_but_what_it_was_given(shared: Running) -> None:
    """Every mount is read-only, but for /proc, whose files are its own, and devices."""
    writable = [
        words[4]
        for line in shared.proc("mountinfo").read_text().splitlines()
        if "ro" not in (words := line.split())[5].split(",")
    ]
    assert {place for place in writable if not place.startswith("/dev/")} <= {"/proc"}
    files = {os.readlink(entry) for entry in shared.proc("fd").iterdir()}
    ours = {name for name in files if name.startswith("/") and not name.startswith(("/dev/", "/proc/"))}
    assert {Path(name).name for name in ours} == {
        *("vmlinuz", "initrd", "root.ext4", "memfd:guest-memory (deleted)", "overlay.ext4", "work.ext4"),
    }


async def test_qemu_is_bounded(shared: Running) -> None:
    """A core would hold the guest's memory; a file that it grows would fill the host."""
    limits = {
        line[:25].strip(): line[26:].split()[0] for line in shared.proc("limits").read_text().splitlines()
    }
    assert limits["Max core file size"] == "0"
    assert limits["Max file size"] == str(192 << 20)
    assert int(limits["Max open files"]) <= 128
    in_a_group = f"coatcheck-{shared.directory.name}" in shared.proc("cgroup").read_text()
    assert in_a_group or limits["Max address space"] != "unlimited"


async def test_no_socket_has_a_name(shared: Running) -> None:
    """Who sees a socket in a directory may connect to it: control, channel and console are pairs."""
    assert {path.name for path in shared.directory.iterdir()} == {"overlay.ext4"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in shared.directory.iterdir())


# --- the guest -------------------------------------------------------------------------------------------


async def test_the_guest_has_no_network_device(shared: Running) -> None:
    """Not even one that leads nowhere."""
    assert await shared.guest.ask("list /sys/class/net") == "lo "


async def test_the_guest_cannot_write_its_root(shared: Running) -> None:
    """It is every sandbox's."""
    assert await shared.guest.ask("put root x") == "not written"


async def test_the_guests_command_line_holds_nothing_secret(shared: Running) -> None:
    """Everybody in there can read it. Nothing of the host's is in it but the CPU's frequency."""
    words = (await shared.guest.ask("read /proc/cmdline")).split()
    assert {word.split("=")[0] for word in words} <= {
        *("console", "quiet", "panic", "oops", "reboot", "pci", "i8042.noaux", "i8042.nokbd", "nowatchdog"),
        *("cryptomgr.notests", "random.trust_cpu", "mitigations", "no_timer_check", "tsc", "tsc_early_khz"),
    }


async def test_a_paused_guest_does_nothing_until_it_is_resumed(shared: Running) -> None:
    """Not an instruction: what is looked at meanwhile does not change."""
    await shared.machine.pause()
    await shared.machine.pause()
    await shared.guest.tell("echo late")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await shared.guest.line()
    await shared.machine.resume()
    await shared.machine.resume()
    assert await shared.guest.line() == "late"


async def test_what_the_guest_holds_is_found_in_its_remains(shared: Running) -> None:
    """Memory and disks: as files, without a word to the guest, which goes on afterwards."""
    with pytest.raises(MachineError, match="the machine runs"):
        await shared.machine.remains()
    assert await shared.guest.ask("remember in-memory-2718") == "remembered"
    assert await shared.guest.ask("put overlay on-disk-3141") == "written"
    assert await shared.guest.ask("put volume0 on-volume-1414") == "written"
    await shared.machine.pause()
    try:
        await shared.guest.tell("echo in-flight-1618")
        for _ in range(2):
            found = {remain.kind: remain for remain in reversed(await shared.machine.remains())}
            assert b"in-memory-2718" in read(found[RemainKind.MEMORY].path)
        disks = [r.path for r in await shared.machine.remains() if r.kind is RemainKind.DISK]
        contents = [read(path) for path in disks]
    finally:
        await shared.machine.resume()
    assert [b"on-disk-3141" in content for content in contents] == [True, False]
    assert [b"on-volume-1414" in content for content in contents] == [False, True]
    assert await shared.guest.line() == "in-flight-1618"
    assert await shared.guest.ask("get overlay") == "on-disk-3141"


def read(path: Path | None) -> bytes:
    assert path is not None
    return path.read_bytes()


async def test_two_sandboxes_cannot_have_one_volume(
    shared: Running, image: Path, volume: Volume, tmp_path: Path
) -> None:
    """Two guests that write to one ext4 destroy it."""
    second = MicroVM(wanted(image, volume), tmp_path)
    with pytest.raises(MachineError, match="in use by another sandbox"):
        await second.start()
    assert list(tmp_path.iterdir()) == []


async def test_a_machine_stopped_leaves_nothing_and_its_volume_lasts(
    shared: Running, image: Path, volume: Volume, tmp_path: Path
) -> None:
    """The overlay is thrown away; the volume is found again. A guest that restarts is over, and told so."""
    assert await shared.guest.ask("put overlay gone") == "written"
    assert await shared.guest.ask("put volume0 kept") == "written"
    pid = shared.machine.pid
    await shared.machine.stop()
    await shared.machine.stop()
    assert not Path(f"/proc/{pid}").exists()
    assert list(shared.directory.iterdir()) == []
    assert await shared.machine.wait() == "it was stopped"
    with pytest.raises(MachineError, match="not running"):
        await shared.machine.pause()
    async with running(tmp_path, image, volume) as after:
        assert await after.guest.ask("get volume0") == "kept"
        assert await after.guest.ask("get overlay") == ""
        await after.guest.tell("restart")
        assert await after.machine.wait() == "the guest restarted, and a sandbox does not come back"


# --- how it ends -----------------------------------------------------------------------------------------

_SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from coatcheck.launcher.microvm import MicroVM
from tests.system.launcher.test_microvm import wanted

async def main():
    machine = MicroVM(wanted(Path(sys.argv[1])), Path(sys.argv[2]))
    await machine.start()
    print(machine.pid, flush=True)
    print(await machine.wait(), flush=True)

asyncio.run(main())
"""


def descendants(pid: int) -> Sequence[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed] + [each for child in listed for each in descendants(int(child))]


async def test_a_supervisor_killed_takes_its_machine_along(image: Path, tmp_path: Path) -> None:
    """By SIGKILL: nothing of ours runs any more that could clean up, and no process is left. Its files and
    its control group are swept by the daemon."""
    place = tmp_path / secrets.token_hex(8)
    place.mkdir(mode=0o700)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _SUPERVISOR, str(image), str(place)),
        cwd=Path(__file__).parents[3],
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(BOOT_SECONDS):
            qemu = int(await process.stdout.readline() if process.stdout else b"")
        below = descendants(process.pid)
        assert qemu in below
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()
    async with asyncio.timeout(10):
        while any(Path(f"/proc/{pid}").exists() for pid in below):
            await asyncio.sleep(0.01)
    cgroup.remove(f"coatcheck-{place.name}")
    assert groups(f"coatcheck-{place.name}") == []


def groups(name: str) -> list[Path]:
    found = cgroup.find()
    places = {*found.v1.values(), *([found.unified] if found.unified else [])}
    return [place / name for place in places if (place / name).is_dir()]


async def test_a_qemu_that_dies_ends_a_start(image: Path, tmp_path: Path) -> None:
    """By whatever hand: the signal is told, and nothing is left."""
    place = tmp_path / secrets.token_hex(8)
    place.mkdir(mode=0o700)
    machine = MicroVM(wanted(image), place)
    starting = asyncio.create_task(machine.start())
    while not machine.console() and not starting.done():
        await asyncio.sleep(0.01)
    os.kill(machine.pid, signal.SIGKILL)
    with pytest.raises(MachineError, match="did not come up: QEMU was killed by signal 9"):
        await starting
    assert list(place.iterdir()) == []


async def failing(spec: MachineSpec, directory: Path) -> MachineError:
    """The error of a machine that cannot start; nothing is left of it."""
    machine = MicroVM(spec, directory)
    with pytest.raises(MachineError) as caught:
        await machine.start()
    assert list(directory.iterdir()) == []
    assert machine.pid == 0
    assert groups(f"coatcheck-{directory.name}") == []
    return caught.value


async def test_a_kernel_that_gives_up_is_quoted(image: Path, tmp_path: Path) -> None:
    """Here it finds no init: the console's last lines stand in the error."""
    broken = tmp_path / "image"
    broken.mkdir()
    for name in ("vmlinuz", "root.ext4"):
        (broken / name).symlink_to(image / name)
    (broken / "initrd").write_bytes(b"no archive")
    (broken / "initrd").chmod(0o644)
    (tmp_path / "run").mkdir(mode=0o700)
    error = await failing(wanted(broken), tmp_path / "run")
    assert "the guest did not come up" in str(error)
    assert "its console ends with:" in str(error)
    assert "Kernel panic" in str(error)
    assert "coatcheck image build" in error.hint


async def test_a_kernel_that_never_speaks_has_a_deadline(image: Path, tmp_path: Path) -> None:
    """A start that hangs would hang its caller."""
    error = await failing(wanted(image, boot_seconds=0.8), tmp_path)
    assert "said nothing for 0.8 s" in str(error)


async def test_a_kernel_that_is_none_is_said(image: Path, tmp_path: Path) -> None:
    """In QEMU's own words."""
    broken = tmp_path / "image"
    broken.mkdir()
    for name in ("initrd", "root.ext4"):
        (broken / name).symlink_to(image / name)
    (broken / "vmlinuz").write_bytes(b"\0" * 100_000)
    (broken / "vmlinuz").chmod(0o644)
    (tmp_path / "run").mkdir(mode=0o700)
    error = await failing(wanted(broken, boot_seconds=10), tmp_path / "run")
    assert "QEMU does not start: " in str(error) or "it printed nothing" in str(error)


@pytest.mark.parametrize("part", ["vmlinuz", "initrd", "root.ext4"])
async def test_an_image_without_a_part_is_said(image: Path, tmp_path: Path, part: str) -> None:
    """With the file's name, and how to have it."""
    broken = tmp_path / "image"
    broken.mkdir()
    for name in {"vmlinuz", "initrd", "root.ext4"} - {part}:
        (broken / name).symlink_to(image / name)
    (tmp_path / "run").mkdir(mode=0o700)
    error = await failing(wanted(broken), tmp_path / "run")
    assert f"the image's {part} cannot be opened" in str(error)
    assert error.hint == "build it: coatcheck image build"


async def test_a_missing_qemu_is_said(image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the package to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "qemu-system-x86_64 is missing" in str(await failing(wanted(image), tmp_path))


async def test_an_isolation_that_it_is_not_is_refused(image: Path, tmp_path: Path) -> None:
    """A credential may have been granted for exactly that."""
    spec = MachineSpec(Isolation.NAMESPACE, image, Resources(192, 1, 64, 64))
    assert "not isolation of class namespace" in str(await failing(spec, tmp_path))
    assert "needs an image" in str(await failing(wanted(None), tmp_path))
