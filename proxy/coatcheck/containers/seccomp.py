"""A filter of system calls for the namespace backend, where sandboxes share the host's kernel.

Classic BPF as `bwrap --seccomp` and seccomp(2) load it. What it refuses is what a command of a sandbox has no
use for and what most holes of recent kernels needed: keyrings, BPF, perf, userfaultfd, io_uring, modules, new
user namespaces and the mounts that they allow, and a terminal's input from elsewhere (TIOCSTI).
"""

import platform
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from errno import EAFNOSUPPORT, ENOSYS, EPERM

CLONE_NEWUSER = 0x10000000
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
"""Keys put into, or a selection pasted into, somebody else's terminal: a command that its reader types."""

FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. Left out is what no network namespace holds (AF_VSOCK reaches
the hypervisor that this host itself may run on) and what only attackers would use, such as AF_ALG."""

_X32 = 0x40000000
"""x86-64's third ABI has numbers of its own for the same calls."""
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ, |BPF_JGE, |BPF_JSET, BPF_RET; all with constants."""
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE = 0, 4
"""Offsets in struct seccomp_data; argument n is at 16 + 8n, little endian."""


@dataclass(frozen=True, slots=True)
class _Machine:
    audit: int
    """AUDIT_ARCH_…"""
    numbers: Mapping[str, int]


_SAME = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435,
    "mount_setattr": 442,
}  # fmt: skip
"""Since Linux 5.1 a call has one number on all machines."""
_MACHINES = {
    "x86_64": _Machine(0xC000003E, _SAME | {
        "ioctl": 16, "socket": 41, "clone": 56, "pivot_root": 155, "acct": 163, "mount": 165,
        "umount2": 166, "swapon": 167, "swapoff": 168, "init_module": 175, "delete_module": 176,
        "quotactl": 179, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250,
        "unshare": 272, "perf_event_open": 298, "open_by_handle_at": 304, "setns": 308,
        "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
    }),
    "aarch64": _Machine(0xC00000B7, _SAME | {
        "ioctl": 29, "umount2": 39, "mount": 40, "pivot_root": 41, "quotactl": 60, "acct": 89,
        "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106, "socket": 198,
        "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "swapon": 224, "swapoff": 225,
        "perf_event_open": 241, "open_by_handle_at": 265, "setns": 268, "finit_module": 273, "bpf": 280,
        "userfaultfd": 282, "kexec_file_load": 294,
    }),
}  # fmt: skip

_ALWAYS = (
    *("add_key", "request_key", "keyctl", "bpf", "perf_event_open", "userfaultfd"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register", "open_by_handle_at"),
    *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load"),
    *("acct", "quotactl", "swapon", "swapoff"),
)
_MOUNTING = (
    *("mount", "umount2", "pivot_root", "setns", "open_tree", "move_mount"),
    *("fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr"),
)


def program(*, nests: bool, machine: str = platform.machine()) -> bytes:
    """The filter, as `struct sock_filter`s. With `nests`, namespaces and mounts are left alone: bubblewrap
    runs under it, and gives its command the filter without.

    KeyError for a machine that we have no numbers for.
    """
    known = _MACHINES[machine]
    lines = [
        _line(_LOAD, _ARCHITECTURE),
        _line(_EQUAL, known.audit, 1, 0),  # the 32-bit calls have numbers of their own, and nobody needs them
        _line(_RETURN, _KILL),
        _line(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        lines += [_line(_AT_LEAST, _X32, 0, 1), _refuse(ENOSYS)]
    for name in _ALWAYS if nests else (*_ALWAYS, *_MOUNTING):
        lines += [_line(_EQUAL, known.numbers[name], 0, 1), _refuse(EPERM)]
    lines += _families(known.numbers["socket"])
    lines += _argument(known.numbers["ioctl"], 1, ((_EQUAL, TIOCSTI), (_EQUAL, TIOCLINUX)))
    if not nests:
        lines += _argument(known.numbers["unshare"], 0, ((_ANY_BIT, CLONE_NEWUSER),))
        lines += _argument(known.numbers["clone"], 0, ((_ANY_BIT, CLONE_NEWUSER),))
        # Its flags are behind a pointer, where no filter can look; the C library then uses clone.
        lines += [_line(_EQUAL, known.numbers["clone3"], 0, 1), _refuse(ENOSYS)]
    return b"".join([*lines, _line(_RETURN, _ALLOW)])


def _argument(number: int, index: int, tests: tuple[tuple[int, int], ...]) -> Iterator[bytes]:
    """Refuses call `number` when one of `tests` is true of its argument's lower half, which is all that the
    kernel reads of these."""
    yield _line(_EQUAL, number, 0, 2 + 2 * len(tests))
    yield _line(_LOAD, 16 + 8 * index)
    for test, constant in tests:
        yield _line(test, constant, 0, 1)
        yield _refuse(EPERM)
    yield _line(_LOAD, _NUMBER)


def _families(number: int) -> Iterator[bytes]:
    """Refuses call `number` unless its first argument is one of FAMILIES."""
    yield _line(_EQUAL, number, 0, 3 + len(FAMILIES))
    yield _line(_LOAD, 16)
    for index, family in enumerate(FAMILIES):
        yield _line(_EQUAL, family, len(FAMILIES) - index, 0)
    yield _refuse(EAFNOSUPPORT)
    yield _line(_LOAD, _NUMBER)


def _refuse(number: int) -> bytes:
    return _line(_RETURN, _ERRNO | number)


def _line(code: int, constant: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, constant)
