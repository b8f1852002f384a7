"""A sandbox without a virtual machine: Linux namespaces, for laptops and for fast tests, or gVisor.

With namespaces the kernel is the host's, so this is `isolation: namespace`, and a credential may require
more. A sandbox has no network device but loopback, no process, file, socket or user of the host, no
privilege, a list of allowed system calls, and limits. Where the daemon is root and may make control groups,
runc makes it, with several user IDs; elsewhere bubblewrap makes it, with one. With gVisor
(`isolation: gvisor`) runsc runs a second kernel as a process of the host, which may itself make only a few
dozen system calls. Such a sandbox has one identity, because gVisor has no firewall that could tell several
apart.

The agent is process 1 inside and speaks over a socket that we made before it ran. Files are in memory, so the
most that one sandbox takes of the host's memory is its memory and its disk together.
"""

import asyncio
import contextlib
import hashlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from coatcheck.containers import cgroup, oci, processes, seccomp
from coatcheck.containers.bubblewrap import BLOCK, INFO, Bubblewrap
from coatcheck.containers.cgroup import Cgroup
from coatcheck.containers.child import found, memory_file
from coatcheck.containers.filesystem import COMMAND_FILTER
from coatcheck.containers.layout import (
    AGENT,
    AGENT_UID,
    WRITABLE,
    Descriptors,
    File,
    Layout,
    arguments,
    small_files,
)
from coatcheck.containers.runtime import Runtime
from coatcheck.decision.session import Isolation
from coatcheck.sandbox.limits import MIB, LimitName
from coatcheck.sandbox.machine import MachineError, MachineSpec, Remain, RemainKind
from coatcheck.sandbox.sandbox import IDENTITIES

FIRST_HOST_UID = 0x60000000
"""Of the block from which root takes users for sandboxes: in what systemd leaves to containers, and above
what `useradd` writes into /etc/subuid."""
_BLOCKS, _USERS_A_BLOCK = 1 << 24, 4
LOW_PRIORITY = 10
"""`nice`, where no cgroup holds the CPU: the neighbours go first."""
GVISOR_MIB = 192
"""gVisor's own kernel and its file server beside what its sandbox uses."""
GVISOR_THREADS = 4096
"""Of the host: a process in there takes several. When there are no more, gVisor ends with its sandbox."""
_GVISOR = ("--network=none", "--ignore-cgroups", "--host-uds=none")
_INPUT, _CHANNEL, _FILTER, _FIRST_FILE = 0, 3, 6, 7


def find_program(isolation: Isolation) -> str:
    """Where that is which makes sandboxes of this class here. MachineError: it is missing."""
    return found(_program(isolation))


def identities(isolation: Isolation) -> tuple[str, ...]:
    """The users that can be told apart in there: bubblewrap maps one user, and gVisor has no firewall for
    several."""
    return IDENTITIES if _program(isolation) == "runc" else IDENTITIES[:1]


def _program(isolation: Isolation) -> str:
    if isolation is Isolation.GVISOR:
        return "runsc"
    # Also as root, runc makes nothing without control groups, and in a Kubernetes pod they are read-only.
    return "runc" if os.geteuid() == 0 and cgroup.writable() else "bwrap"


class ContainerMachine:
    """One sandbox; see `machine.Machine`.

    `agent`: the guest's agent, a static program. `nests`: its commands are wrapped by `filesystem.wrap`,
    which needs namespaces of its own.
    """

    def __init__(self, spec: MachineSpec, directory: Path, *, agent: Path, nests: bool = False) -> None:
        self._spec = spec
        self._has = spec.resources
        self._directory = directory
        self._name = f"coatcheck-{directory.name}"
        self._agent = agent
        self._nests = nests
        self._root = os.geteuid() == 0
        self._gvisor = spec.isolation is Isolation.GVISOR
        self.process: Bubblewrap | Runtime
        if self._gvisor:
            options = _GVISOR if self._root else (*_GVISOR, "--rootless")
            self.process = Runtime("runsc", self._name, directory, options)
        else:
            several = _program(spec.isolation) == "runc"
            self.process = Runtime("runc", self._name, directory) if several else Bubblewrap()
        self._user = _host_user(directory) if self._root and not self._gvisor else None
        self.group: Cgroup | None = None
        self._paused = self._signalled = False
        self._stopped = False

    @property
    def isolation(self) -> Isolation:
        return self._spec.isolation

    @property
    def identities(self) -> tuple[str, ...]:
        """See the function of this name."""
        return IDENTITIES if isinstance(self.process, Runtime) and not self._gvisor else IDENTITIES[:1]

    @property
    def unenforced(self) -> tuple[str, ...]:
        """After `start`: a sentence for each limit that this host gives no means for."""
        why = "this root may make no cgroup" if self._root else "no cgroup is delegated to this user"
        missing = {
            LimitName.MEMORY: f"each process has {self._has.memory_mib} MiB of memory, not all together",
            LimitName.PROCESSES: "processes are counted for each user of the sandbox, not for all together",
            LimitName.CPUS: f"CPUs are not limited, and all of it runs at nice {LOW_PRIORITY}",
        }
        if self._gvisor:
            missing[LimitName.PROCESSES] = f"gVisor ends with its sandbox at {GVISOR_THREADS} threads"
            missing[LimitName.MEMORY] = "memory is not limited"
        enforced = self.enforced() - ({LimitName.PROCESSES} if self._gvisor else set())
        return tuple(f"{says}: {why}" for name, says in missing.items() if name not in enforced)

    def hits(self) -> frozenset[LimitName]:
        """Which limits anything in it ran into since the last call, as the host's kernel counted them."""
        return self.group.hits() if self.group else frozenset()

    async def start(self) -> socket.socket:
        self._check()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                await self._launch(theirs)
            ours.setblocking(False)
            await self._first_byte(ours)
        except BaseException:
            ours.close()
            await self.stop()
            raise
        return ours

    async def wait(self) -> str:
        code = await self.process.wait()
        if self._stopped:
            return "it was stopped"
        how = f"was killed by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
        return f"the sandbox's first process {how}"

    async def pause(self) -> None:
        if self.process.first == 0 or self.process.ended():
            raise MachineError("this sandbox is not running")
        self._paused = True  # may be, from here on: `resume` and `stop` must see to it
        if self._gvisor and isinstance(self.process, Runtime):
            if not self._signalled:
                await self.process.pause()
                self._signalled = True
            return
        # Also when it was paused before: that may have failed half-way, which nobody may be told is a pause.
        frozen: bool = await asyncio.to_thread(self.group.freeze) if self.group else False
        if frozen:
            return
        self._signalled = True
        try:
            await asyncio.to_thread(processes.stop_tree, self.process.first)
        except TimeoutError as error:
            raise MachineError(f"the sandbox cannot be paused: {error}", "end it, or try again") from error

    async def resume(self) -> None:
        if not self._paused:
            return
        if self._gvisor and isinstance(self.process, Runtime):
            await self.process.resume()
            self._paused = self._signalled = False
            return
        if self.group:
            await asyncio.to_thread(self.group.thaw)
        if self._signalled:
            await asyncio.to_thread(processes.continue_tree, self.process.first)
        self._paused = self._signalled = False

    async def remains(self) -> Sequence[Remain]:
        """Its processes, and the directories that it may write to, as process 1 sees them."""
        first = self.process.first
        if first == 0 or self.process.ended():
            raise MachineError("this sandbox has ended, and nothing of it is left to search")
        remains = [Remain(f"process {pid}", RemainKind.PROCESS, pid=pid) for pid in processes.tree(first)]
        if self._gvisor:  # its memory, in which its files are, is a file that it has open
            return [*remains, *await asyncio.to_thread(_memory_of, first)]
        for place in WRITABLE:
            path = Path(f"/proc/{first}/root{place}")
            remains.append(Remain(f"files in {place}", RemainKind.FILE, path=path))
        return remains

    async def stop(self) -> None:
        self._stopped = True
        if self.group and self._paused:
            await asyncio.to_thread(self.group.thaw)  # v1 lets nobody die while he is frozen
        await self.process.stop()
        if self.group:
            group, self.group = self.group, None
            await asyncio.to_thread(group.close)

    def _check(self) -> None:
        if self._spec.isolation not in (Isolation.NAMESPACE, Isolation.GVISOR):
            raise MachineError(
                f"namespaces are not isolation of class {self._spec.isolation}",
                "ask for `isolation: namespace` or `gvisor`, or for a microVM",
            )
        if self._gvisor and self._nests:
            raise MachineError(
                "the policy's filesystem needs bubblewrap around each command, which gVisor cannot run",
                "use the namespace backend or a microVM, or a policy without `filesystem`",
            )
        if self._spec.volumes:
            raise MachineError(
                "volumes are disks, which only a microVM has", "leave the volume out, or run a microVM"
            )
        if self._spec.image is not None and not (self._spec.image / "root").is_dir():
            raise MachineError(
                f"the image {self._spec.image.name} is a microVM's: it holds no directory `root`",
                "leave the image out to use this machine's own programs, or run a microVM",
            )
        try:
            os.close(os.open(self._agent, os.O_RDONLY))
        except OSError as error:
            raise MachineError(
                f"the guest's agent {self._agent} cannot be read: {error.strerror}", "build it anew"
            ) from error

    async def _launch(self, channel: socket.socket) -> None:
        layout = Layout(
            root=self._spec.image / "root" if self._spec.image else None,
            disk_mib=self._has.disk_mib,
            memory_mib=self._has.memory_mib,
        )
        self.group = await asyncio.to_thread(self._make_group)
        if isinstance(self.process, Runtime):
            container = await asyncio.to_thread(self._container, layout)
            if self._gvisor:  # of descriptors it passes on the standard ones alone
                await self.process.start(oci.config(container), {_INPUT: channel.fileno()}, group=self.group)
            else:
                given = {_CHANNEL: channel.fileno()}
                await self.process.start(oci.config(container), given, ("--preserve-fds", "1"))
            return
        files = (
            File(AGENT, self._agent.read_bytes(), 0o555),
            File(COMMAND_FILTER, seccomp.program(nests=False)),
            *small_files(layout, self.identities),
        )
        numbers = range(_FIRST_FILE, _FIRST_FILE + len(files))
        words = arguments(layout, zip(files, numbers, strict=True), Descriptors(BLOCK, INFO, _FILTER))
        with contextlib.ExitStack() as opened:
            given = {_CHANNEL: channel.fileno()}
            given[_FILTER] = memory_file(opened, seccomp.program(nests=self._nests))
            given |= {
                number: memory_file(opened, file.content) for number, file in zip(numbers, files, strict=True)
            }
            await self.process.start(words, given, self._user, self._prepare)

    def _container(self, layout: Layout) -> oci.Container:
        files = small_files(layout, self.identities)
        bound = [
            File(AGENT, self._agent.read_bytes(), 0o555),
            File(COMMAND_FILTER, seccomp.program(nests=False)),
            *(files if layout.root is not None else ()),
        ]
        binds = {file.path: self._directory / f"file{number}" for number, file in enumerate(bound)}
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in bound:
            binds[file.path].write_bytes(file.content)
            binds[file.path].chmod(file.mode)
        return oci.Container(
            layout=layout,
            root=layout.root or oci.host_root(files, None if self._root else self._directory),
            binds=binds,
            cgroup=None if self._gvisor else self._name,
            rlimits={f"RLIMIT_{name.upper()}": most for name, most in self._limits().items()},
            user=self._user,
            nests=self._nests,
            arguments=(AGENT, "--input" if self._gvisor else "--namespace"),
        )

    def _make_group(self) -> Cgroup | None:
        try:
            return Cgroup.create(
                self._name,
                memory_mib=self._has.memory_mib + self._has.disk_mib + (GVISOR_MIB if self._gvisor else 0),
                processes=GVISOR_THREADS if self._gvisor else self._has.processes,
                cpus=self._has.cpus,
            )
        except FileExistsError as error:
            raise MachineError(
                str(error), "another sandbox has this directory's name; choose another"
            ) from error

    def enforced(self) -> frozenset[LimitName]:
        return self.group.enforces if self.group else frozenset()

    def _limits(self) -> dict[str, int]:
        """For each process."""
        limits = {"nofile": oci.OPEN_FILES, "core": 0}
        if LimitName.PROCESSES not in self.enforced():  # else the group's limit is met first, and is counted
            limits["nproc"] = self._has.processes
        if LimitName.MEMORY not in self.enforced():
            # Not RLIMIT_AS: V8 and Go reserve gigabytes of addresses that they never touch.
            limits["data"] = self._has.memory_mib * MIB
        return limits

    async def _prepare(self, first: int) -> None:
        """Users and limits of bubblewrap's process 1, which all others inherit, before it runs."""
        if self.group:
            await asyncio.to_thread(self.group.add, first)
        _map_user(first, self._user)
        words = [
            *("prlimit", "--pid", str(first)),
            *(f"--{name}={most}" for name, most in self._limits().items()),
        ]
        await self._as_user(words)
        if LimitName.CPUS not in self.enforced():
            await self._as_user(["renice", "-n", str(LOW_PRIORITY), "-p", str(first)])

    async def _as_user(self, words: Sequence[str]) -> None:
        """As the user that process 1 is on the host: for somebody else's limits one needs CAP_SYS_RESOURCE
        and CAP_SYS_NICE, which root in a pod lacks."""
        become = (f"--reuid={self._user}", f"--regid={self._user}", "--clear-groups", "--")
        given = (found("setpriv"), *become) if self._user is not None else ()
        process = await asyncio.create_subprocess_exec(
            *given,
            *(found(words[0]), *words[1:]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
        if process.returncode:
            raise MachineError(f"the sandbox's limits cannot be set: {said.decode(errors='replace').strip()}")

    async def _first_byte(self, channel: socket.socket) -> None:
        """Until the agent spoke. MachineError when it ends, or stays silent."""
        spoke = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(channel, spoke.set)
        try:
            async with asyncio.timeout(self._spec.boot_seconds):
                await spoke.wait()
        except TimeoutError:
            raise MachineError(
                f"the sandbox's agent said nothing for {self._spec.boot_seconds:g} s", "try again"
            ) from None
        finally:
            loop.remove_reader(channel)
        if not channel.recv(1, socket.MSG_PEEK):
            code = await self.process.wait()
            why = self.process.said() or f"exit code {code}"
            raise MachineError(f"the sandbox ended before its agent spoke: {why}")


def _memory_of(first: int) -> list[Remain]:
    found = []
    for file in Path(f"/proc/{first}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(file).startswith("/memfd:"):
                found.append(Remain("gVisor's memory", RemainKind.MEMORY, path=file))
    return found


def _map_user(first: int, user: int | None) -> None:
    """One user, as the first identity: `user`, whom root chose, or ourselves."""
    if user is None:
        Path(f"/proc/{first}/setgroups").write_text("deny")  # user_namespaces(7): else no group is mapped
    uid, gid = (os.geteuid(), os.getegid()) if user is None else (user, user)
    Path(f"/proc/{first}/uid_map").write_text(f"{AGENT_UID} {uid} 1\n")
    Path(f"/proc/{first}/gid_map").write_text(f"{AGENT_UID} {gid} 1\n")


def _host_user(directory: Path) -> int:
    """The first of a sandbox's users on the host, told by its directory: nothing need be kept or given back.

    Two sandboxes whose blocks collide (2^-24) still share no namespace.
    """
    number = int.from_bytes(hashlib.sha256(os.fsencode(directory)).digest()[:8]) % _BLOCKS
    return FIRST_HOST_UID + number * _USERS_A_BLOCK
