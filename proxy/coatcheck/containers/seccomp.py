"""The system calls of a sandbox that shares the host's kernel: those on a list, and no others.

The list is what programs use, after Docker's default profile. It leaves out, among others, keyrings, BPF,
perf, userfaultfd, io_uring, modules, and (unless commands nest) mounts and user namespaces. Where only a part
of a call is needed, its arguments are checked: families of sockets, input typed into a terminal from
elsewhere (TIOCSTI). runc takes the list as it is; libseccomp compiles it for bubblewrap.
"""

import ctypes
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from errno import EAFNOSUPPORT, ENOSYS, EPERM
from functools import cache
from itertools import product
from typing import Any, Final

from coatcheck.sandbox.machine import MachineError

CLONE_NEWUSER: Final = 0x10000000
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
"""Keys put into, or a selection pasted into, somebody else's terminal: a command that its reader types."""
FAMILIES: Final = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. Left out is what no network namespace holds (AF_VSOCK reaches
the hypervisor that this host itself may run on) and what only attackers would use, such as AF_ALG."""
_KNOWN_FAMILIES: Final = 64
"""Of the kernel, and room for more: programs are told that the others do not exist, and try another."""
_PERSONALITIES: Final = (0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Linux, 32-bit addresses, uname26, both, and the question which it is."""
_ARCHITECTURES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ALLOWED: Final = _words(
    """
    accept accept4 access adjtimex alarm arch_prctl bind brk cachestat capget capset chdir chmod chown
    clock_adjtime clock_getres clock_gettime clock_nanosleep close close_range connect copy_file_range
    creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2
    epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2
    fadvise64 fallocate fanotify_mark fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync
    fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync ftruncate futex
    futex_requeue futex_wait futex_waitv futex_wake futimesat get_mempolicy get_robust_list
    get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer
    getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit
    getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr getxattrat
    inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents
    io_pgetevents io_setup io_submit ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset
    landlock_restrict_self lchown lgetxattr link linkat listen listxattr listxattrat llistxattr
    lremovexattr lseek lsetxattr lstat madvise map_shadow_stack mbind membarrier memfd_create memfd_secret
    mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap modify_ldt mprotect mq_getsetattr
    mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget msgrcv msgsnd
    msync munlock munlockall munmap name_to_handle_at nanosleep newfstatat open openat openat2 pause
    pidfd_getfd pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll
    prctl pread64 preadv preadv2 prlimit64 process_madvise process_mrelease process_vm_readv
    process_vm_writev pselect6 ptrace pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv
    recvfrom recvmmsg recvmsg remap_file_pages removexattr removexattrat rename renameat renameat2
    restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
    rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min
    sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
    sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select semctl
    semget semop semtimedop sendfile sendmmsg sendmsg sendto set_mempolicy set_mempolicy_home_node
    set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups sethostname
    setitimer setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid setsockopt setuid
    setxattr setxattrat shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 socketpair
    splice stat statfs statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time
    timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime
    timerfd_settime times tkill truncate umask uname unlink unlinkat uretprobe utime utimensat utimes
    vfork wait4 waitid write writev
    """
)
_NESTING: Final = _words(
    """
    clone clone3 fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree pivot_root setns
    umount2 unshare
    """
)
"""Of a command that makes a user namespace, as bubblewrap does."""


def profile(*, nests: bool) -> dict[str, Any]:
    """As an OCI runtime takes it. With `nests`, namespaces and mounts are left alone: bubblewrap runs under
    it, and gives its command the filter without."""
    rules: list[dict[str, Any]] = [_rule(_ALLOWED + (_NESTING if nests else ()))]
    rules += [_rule(["socket"], (0, each)) for each in FAMILIES]
    others = (each for each in range(_KNOWN_FAMILIES) if each not in FAMILIES)
    rules += [_rule(["socket"], (0, each), refused=EAFNOSUPPORT) for each in others]
    rules += [_rule(["personality"], (0, each)) for each in _PERSONALITIES]
    rules += [_rule(["ioctl"], (1, value, mask)) for value, mask in _all_but(TIOCSTI, TIOCLINUX)]
    if not nests:
        rules.append(_rule(["clone", "unshare"], (0, 0, CLONE_NEWUSER)))
        # Its flags are behind a pointer, where no filter can look; the C library then uses clone.
        rules.append(_rule(["clone3"], refused=ENOSYS))
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": EPERM,
        "architectures": [architecture(platform.machine())],
        "syscalls": rules,
    }


def architecture(machine: str) -> str:
    """KeyError for a machine that this was never tried on: guests and agent are built for two."""
    return _ARCHITECTURES[machine]


def _rule(names: Sequence[str], argument: tuple[int, ...] = (), refused: int | None = None) -> dict[str, Any]:
    """`argument`: its index, the value that it must have, and which of its bits count: by default the lower
    half, which is all that the kernel reads of these."""
    rule: dict[str, Any] = {"names": list(names), "action": "SCMP_ACT_ALLOW"}
    if refused is not None:
        rule |= {"action": "SCMP_ACT_ERRNO", "errnoRet": refused}
    if argument:
        index, value, mask = (*argument, 0xFFFFFFFF)[:3]
        rule["args"] = [{"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}]
    return rule


def _all_but(one: int, other: int) -> Iterator[tuple[int, int]]:
    """Values and masks of which one fits every 32-bit number but these two. Rules of a call are alternatives:
    `not this one` and `not that one` would together allow both."""
    bits = [1 << number for number in range(32)]
    apart = [bit for bit in bits if (one ^ other) & bit]
    same = 0xFFFFFFFF & ~(one ^ other)
    for bit in bits:
        if bit not in apart:
            yield ~one & bit, bit
    for chosen in product((0, 1), repeat=len(apart)):
        value = one & same | sum(bit for bit, taken in zip(apart, chosen, strict=True) if taken)
        if value not in (one, other):
            yield value, 0xFFFFFFFF


# --- compiled ----------------------------------------------------------------------------------------


class _Argument(ctypes.Structure):
    """struct scmp_arg_cmp."""

    _fields_ = (
        ("index", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("mask", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
    )


_MASKED_EQ: Final = 7
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_BAD_ARCHITECTURE: Final = 2
"""SCMP_FLTATR_ACT_BADARCH: the 32-bit calls have numbers of their own, and nobody needs them."""


@cache
def program(*, nests: bool, machine: str = platform.machine()) -> bytes:
    """The same as the kernel takes it, `struct sock_filter`s. KeyError for a machine never tried."""
    token = architecture(machine).removeprefix("SCMP_ARCH_").lower()
    library = _library()
    built = profile(nests=nests)
    context = ctypes.c_void_p(library.seccomp_init(_ERRNO | built["defaultErrnoRet"]))
    try:
        number = library.seccomp_arch_resolve_name(token.encode())
        if number != library.seccomp_arch_native():
            _check(library.seccomp_arch_add(context, number))
            _check(library.seccomp_arch_remove(context, library.seccomp_arch_native()))
        _check(library.seccomp_attr_set(context, _BAD_ARCHITECTURE, _KILL_PROCESS))
        for rule in built["syscalls"]:
            action = _ALLOW if rule["action"] == "SCMP_ACT_ALLOW" else _ERRNO | rule["errnoRet"]
            wanted = [
                _Argument(each["index"], _MASKED_EQ, each["value"], each["valueTwo"])
                for each in rule.get("args", ())
            ]
            for name in rule["names"]:
                call = library.seccomp_syscall_resolve_name_arch(number, name.encode())
                if call >= 0 and action != _ERRNO | built["defaultErrnoRet"]:  # not every machine has each
                    _check(
                        library.seccomp_rule_add_array(
                            context, action, call, len(wanted), (_Argument * len(wanted))(*wanted)
                        )
                    )
        with tempfile.TemporaryFile() as file:
            _check(library.seccomp_export_bpf(context, file.fileno()))
            return os.pread(file.fileno(), 1 << 20, 0)
    finally:
        library.seccomp_release(context)


def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        raise MachineError("libseccomp is missing", "install it: apt-get install libseccomp2") from None
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_attr_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]
    for name in ("seccomp_arch_native", "seccomp_arch_resolve_name"):
        getattr(library, name).restype = ctypes.c_uint32
    library.seccomp_syscall_resolve_name_arch.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    for name in ("seccomp_arch_add", "seccomp_arch_remove"):
        getattr(library, name).argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    library.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p,
    ]  # fmt: skip
    return library


def _check(done: int) -> None:
    if done < 0:
        raise OSError(-done, f"libseccomp: {os.strerror(-done)}")
