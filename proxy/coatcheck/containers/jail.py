"""Confines QEMU, in case a guest takes it over.

QEMU runs as a user who owns nothing. It sees its own program files and no others, has no network, no other
process and no way to new privileges, and its memory and files are bounded. Inside this it has its own seccomp
filter (`qemu`).
"""

import asyncio
import contextlib
import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coatcheck.containers.bubblewrap import BLOCK, INFO
from coatcheck.sandbox.machine import MachineError

USER_INSIDE = 65534
"""Nobody, there too."""
FIRST_HOST_UID = 0x70000000
_HOST_UIDS = 1 << 24
"""Users that root takes for machines: between what systemd gives to containers and to nobody, above
/etc/subuid's, not the namespace backend's. One each: an outbreak owns no other machine's process or file."""
OUT_OF_MEMORY_SCORE = 500
"""When the host runs out of memory, a sandbox goes before what serves all of them."""
OPEN_FILES = 128
"""It has about twenty open and opens none while it runs."""
THREADS = 96
"""One a CPU, up to 64 for disks, a few of its own."""
FIRMWARE = (Path("/usr/share/qemu"), Path("/usr/share/seabios"))
_LIST_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Jail:
    """What QEMU sees. Read-only, all of it."""

    program: Path
    libraries: tuple[Path, ...]
    """Files, each at its own path."""
    kvm: bool


def arguments(jail: Jail, command: Sequence[str]) -> list[str]:
    """bubblewrap's, with QEMU's `command` after the program's name."""
    words = [
        *("--unshare-user", "--uid", str(USER_INSIDE), "--gid", str(USER_INSIDE)),
        *("--userns-block-fd", str(BLOCK), "--info-fd", str(INFO)),
        *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup"),
        # Process 1 and its supervisor go together: nothing runs that nobody watches.
        *("--hostname", "machine", "--as-pid-1", "--die-with-parent", "--new-session"),
        *("--clearenv", "--chdir", "/", "--cap-drop", "ALL"),
    ]
    for path in (jail.program, *jail.libraries):
        words += ["--ro-bind", str(path), str(path)]
    for path in FIRMWARE:
        words += ["--ro-bind-try", str(path), str(path)]
    # /proc for /proc/self/fd: its own processes are all that is in it.
    words += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    if jail.kvm:
        words += ["--dev-bind", "/dev/kvm", "/dev/kvm"]
    return [*words, "--remount-ro", "/", "--", str(jail.program), *command]


def find_qemu() -> Path:
    """The emulator. MachineError when it is not installed."""
    found = shutil.which("qemu-system-x86_64")
    if found is None:
        raise MachineError(
            "qemu-system-x86_64 is missing: without it there are no microVMs",
            "install it: apt-get install qemu-system-x86; or use the namespace backend",
        )
    return Path(found).resolve()


async def libraries(program: Path) -> tuple[Path, ...]:
    """The files that `program` is made of beside itself: what the loader maps, and QEMU's accelerators."""
    # What ldd does, without the shell that it is written in.
    process = await asyncio.create_subprocess_exec(
        *(str(program), "--version"),
        env={"LD_TRACE_LOADED_OBJECTS": "1"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(_LIST_SECONDS):
            listed, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise MachineError(
            f"{program} did not say within {_LIST_SECONDS:g} s which libraries it needs", "try again"
        ) from None
    return parse_ldd(listed.decode(errors="replace"))


def parse_ldd(listed: str) -> tuple[Path, ...]:
    """The paths in ldd's answer, and the accelerators that Debian's QEMU keeps in files beside them."""
    words = (line.split(" (0x")[0].split(" => ")[-1].strip() for line in listed.splitlines())
    found = [Path(word) for word in words if word.startswith("/")]
    # Resolved: QEMU looks in /usr/lib, where ldd says /lib and both are one directory.
    places = dict.fromkeys(path.resolve().parent / "qemu" for path in found)
    accelerators = [path for place in places for path in sorted(place.glob("accel-*x86_64.so"))]
    return (*dict.fromkeys(found), *accelerators)


def user_for(directory: Path) -> int | None:
    """The user that QEMU runs as in `directory`, where we are root; else it runs as we do."""
    if os.geteuid() != 0:
        return None
    return host_user(directory, Path("/proc/self/uid_map").read_text())


def host_user(directory: Path, uid_map: str) -> int:
    """The user of the machine in `directory`, where we are root; `uid_map`: /proc/self/uid_map.

    Told by the directory, so that nothing need be kept or given back; two that collide (2^-24) still share
    no namespace. MachineError where no other user than root exists.
    """
    number = int.from_bytes(hashlib.sha256(os.fsencode(directory)).digest()[:8]) % _HOST_UIDS
    ranges = [tuple(map(int, line.split())) for line in uid_map.splitlines()]
    for user in (FIRST_HOST_UID + number, USER_INSIDE):  # the second: a container with 65,536 users
        if any(first <= user < first + count for first, _, count in ranges):
            return user
    raise MachineError(
        "this container has no user but root, so QEMU would run as root",
        "run as an ordinary user, or give the container more users (a uid map of 65536)",
    )


def map_user(first: int, user: int) -> None:
    """Map the only user of process `first`'s new namespace to `user` of the host."""
    group = user
    if os.geteuid() != 0:
        Path(f"/proc/{first}/setgroups").write_text("deny")  # user_namespaces(7): else no group is mapped
        group = os.getegid()
    Path(f"/proc/{first}/uid_map").write_text(f"{USER_INSIDE} {user} 1\n")
    Path(f"/proc/{first}/gid_map").write_text(f"{USER_INSIDE} {group} 1\n")


def limits(*, address_space: int | None, file_size: int, own_user: bool) -> tuple[str, ...]:
    """For prlimit(1). `address_space` in bytes, where no cgroup counts memory; `own_user`: nobody else's
    threads count as its."""
    words = [
        "--core=0",  # a core is the guest's memory in a file
        f"--fsize={file_size}",  # no file that it holds can be grown to fill the host
        f"--nofile={OPEN_FILES}",
        "--memlock=0",
        "--msgqueue=0",
    ]
    if address_space is not None:
        words.append(f"--as={address_space}")
    if own_user:
        words.append(f"--nproc={THREADS}")
    return tuple(words)


async def confine(first: int, words: Sequence[str], user: int | None) -> None:
    """Put process `first` under the limits that `words` say; what it becomes has them, too.

    As `user`, who it is: for somebody else's one needs CAP_SYS_RESOURCE, which root in a container lacks.
    """
    program = shutil.which("prlimit")
    if program is None:
        raise MachineError("prlimit is missing", "install it: apt-get install util-linux")
    _volunteer(first)
    become: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    process = await asyncio.create_subprocess_exec(
        program,
        *("--pid", str(first), *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        **become,
    )
    _, said = await process.communicate()
    if process.returncode:
        raise MachineError(f"QEMU's limits cannot be set: {said.decode(errors='replace').strip()}")


def _volunteer(first: int) -> None:
    with contextlib.suppress(OSError):  # a hint to the kernel; the walls are elsewhere
        Path(f"/proc/{first}/oom_score_adj").write_text(str(OUT_OF_MEMORY_SCORE))
