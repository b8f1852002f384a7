"""A sandbox's processes: whether one of them could undo what keeps it in. By what the kernel says of each.

Capabilities count in the user namespace that owns the sandbox's network namespace, and in those above it:
root of a namespace further down has the same bits and none of the power.
"""

import errno
import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coatcheck.doctor.finding import Finding, ok, problem, warning

CHECK = "sandbox"
MOST_PROCESSES = 65_536
"""Looked at: two or three files each, so a few seconds on the largest machine."""
_NS_GET_USERNS, _NS_GET_PARENT = 0xB701, 0xB702
"""ioctl_ns(2)."""
DEEPEST = 32
"""User namespaces inside each other (user_namespaces(7))."""


@dataclass(frozen=True, slots=True)
class Power:
    """A capability, and what a sandbox that has it could do."""

    name: str
    bit: int
    could: str
    grave: bool = True


POWERS = (
    Power("CAP_NET_ADMIN", 12, "change addresses, routes and firewall of its network namespace"),
    Power("CAP_SYS_ADMIN", 21, "mount, enter other namespaces, and much more"),
    Power("CAP_NET_RAW", 13, "send packets of any form and, on a shared link, from any address", grave=False),
)


@dataclass(frozen=True, slots=True)
class Process:
    """What /proc says of one."""

    pid: int
    name: str
    held: int
    """Capabilities that it has or may switch on: permitted, effective and ambient ones."""
    bounding: int
    """What the programs that it starts can have at most."""
    locked: bool
    """no_new_privs: no program that it starts has more than it has."""
    user_namespace: int


def sandbox(pid: int, proc: Path = Path("/proc")) -> list[Finding]:
    """Everything in the network namespace of process `pid`, or why nothing can be said about it."""
    try:
        network = (proc / f"{pid}/ns/net").stat().st_ino
        ours = (proc / "self/ns/net").stat().st_ino
        powerful = _owners(proc / f"{pid}/ns/net")
    except FileNotFoundError:
        hint = "give the id of any process in the sandbox, as the host sees it"
        return problem(CHECK, f"there is no process {pid}", hint)
    except OSError as error:
        why = f"process {pid} cannot be looked at: {error.strerror}"
        return problem(CHECK, why, "run coatcheck doctor as root")
    if network == ours:
        return problem(
            CHECK,
            f"process {pid} is in this machine's own network namespace: no redirect is in its way, and it "
            "reaches what listens on loopback",
            "give the sandbox a network namespace of its own (not --network host, not hostNetwork: true)",
        )
    inside = list(_processes(proc, network))
    return judge(inside, powerful) or ok(
        CHECK, f"{len(inside)} processes, none with a capability that could undo its network"
    )


def judge(processes: Sequence[Process], powerful: frozenset[int]) -> list[Finding]:
    """`powerful`: the user namespaces in which a capability counts for the sandbox's network."""
    found: list[Finding] = []
    for power in POWERS:
        mask = 1 << power.bit
        counting = [each for each in processes if each.user_namespace in powerful]
        held = [each for each in counting if each.held & mask]
        level = problem if power.grave else warning
        if held:
            found += level(
                CHECK, f"{_names(held)} holds {power.name}: it could {power.could}", _without(power)
            )
            continue
        near = [each for each in counting if each.bounding & mask and not each.locked]
        if near:
            found += warning(
                CHECK,
                f"{_names(near)} can get {power.name} by a setuid program: it is in its bounding set, and "
                "no_new_privs is off",
                _without(power),
            )
    return found


def _without(power: Power) -> str:
    return (
        f"start it without: --cap-drop {power.name.removeprefix('CAP_')} --security-opt no-new-privileges, "
        "or in Kubernetes capabilities: {drop: [ALL]} and allowPrivilegeEscalation: false"
    )


def _names(processes: Sequence[Process]) -> str:
    first = f"process {processes[0].pid} ({processes[0].name})"
    return first if len(processes) == 1 else f"{first} and {len(processes) - 1} more"


def _owners(network: Path) -> frozenset[int]:
    """The user namespace that owns a network namespace, and those above it as far as we may see."""
    found: list[int] = []
    descriptor = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
    try:
        request = _NS_GET_USERNS
        while len(found) < DEEPEST:
            try:
                above = fcntl.ioctl(descriptor, request)
            except OSError as error:
                if error.errno == errno.EPERM and found:
                    break  # the one above is not ours to see: it is ours, or above ours
                raise
            os.close(descriptor)
            descriptor, request = above, _NS_GET_PARENT
            found.append(os.fstat(descriptor).st_ino)
    finally:
        os.close(descriptor)
    return frozenset(found)


def _processes(proc: Path, network: int) -> Iterator[Process]:
    for number, path in enumerate(sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name))):
        if number >= MOST_PROCESSES:
            return
        try:
            if (path / "ns/net").stat().st_ino == network:
                user = (path / "ns/user").stat().st_ino
                yield read_status(int(path.name), (path / "status").read_text(), user)
        except OSError:
            continue  # it has ended, or is not ours to see


def read_status(pid: int, text: str, user_namespace: int) -> Process:
    """/proc/PID/status as the kernel writes it (proc_pid_status(5))."""
    fields: Mapping[str, str] = {
        name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())
    }
    sets = {name: int(fields.get(name, "0"), 16) for name in ("CapPrm", "CapEff", "CapAmb", "CapBnd")}
    return Process(
        pid,
        # The sandbox chose it: it must not steer a terminal.
        "".join(each if each.isprintable() else "?" for each in fields.get("Name", "?"))[:15],
        sets["CapPrm"] | sets["CapEff"] | sets["CapAmb"],
        sets["CapBnd"],
        fields.get("NoNewPrivs") == "1",
        user_namespace,
    )
