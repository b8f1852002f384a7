"""The filter, loaded into real processes: what it refuses there, and that programs run under it."""

import platform
import subprocess
import sys
import tempfile

import pytest

from coatcheck.containers.seccomp import program

pytestmark = pytest.mark.needs_debian("bwrap")

NUMBERS = {"keyctl": 250, "add_key": 248, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
           "io_uring_setup": 425, "mount": 165, "fsopen": 430, "setns": 308, "open_by_handle_at": 304,
           "init_module": 175, "clone3": 435}  # fmt: skip


def under(nests: bool, code: str) -> subprocess.CompletedProcess[str]:
    """`code` in Python under the filter, as root of its own user namespace: with every capability there."""
    with tempfile.TemporaryFile() as file:
        file.write(program(nests=nests))
        file.seek(0)
        number = str(file.fileno())
        all_of_it = ("--unshare-user", "--uid", "0", "--cap-add", "ALL", "--dev-bind", "/", "/")
        return subprocess.run(
            ["bwrap", *all_of_it, "--seccomp", number, sys.executable, "-I", "-S", "-c", code],
            pass_fds=(file.fileno(),),
            capture_output=True,
            text=True,
            timeout=60,
        )


def calls(nests: bool, *names: str) -> dict[str, int]:
    """The error number of each call with arguments that mean nothing; 0 when it went through."""
    code = (
        "import ctypes\nl=ctypes.CDLL(None,use_errno=True)\n"
        f"for n,x in {[(name, NUMBERS[name]) for name in names]!r}:\n"
        " ctypes.set_errno(0); r=l.syscall(x,-1,0,0,0,0); print(n, ctypes.get_errno() if r<0 else 0)"
    )
    done = under(nests, code)
    assert done.returncode == 0, done.stderr
    return {name: int(number) for name, number in map(str.split, done.stdout.splitlines())}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers above are x86-64's")
def test_what_no_command_needs_is_refused() -> None:
    """Also to somebody with every capability of his namespace; clone3 as if the kernel had none."""
    eperm, enosys = 1, 38
    found = calls(False, *NUMBERS)
    assert found == dict.fromkeys(NUMBERS, eperm) | {"clone3": enosys}
    mounting = {"mount", "fsopen", "setns", "clone3"}
    found = calls(True, *NUMBERS)
    assert {name for name, number in found.items() if number == eperm} - mounting == set(NUMBERS) - mounting


def test_a_user_namespace_is_refused_by_both_calls_that_make_one() -> None:
    """unshare and clone; other namespaces need a right that commands do not have."""
    code = "import os\ntry: os.unshare({flags}); print('made')\nexcept OSError as e: print(e.errno)"
    assert under(False, code.format(flags="os.CLONE_NEWUSER")).stdout.strip() == "1"
    assert under(False, code.format(flags="os.CLONE_NEWUTS")).stdout.strip() == "made"
    assert under(True, code.format(flags="os.CLONE_NEWUSER")).stdout.strip() == "made"
    cloned = "import ctypes; print(ctypes.CDLL(None).syscall({n}, 0x10000000 | 17, 0, 0, 0, 0))"
    if platform.machine() == "x86_64":
        assert under(False, cloned.format(n=56)).stdout.strip() == "-1"


def test_only_families_that_a_network_namespace_holds_can_be_opened() -> None:
    """AF_VSOCK (40) would reach the hypervisor below this host, whatever the namespace."""
    code = """
import socket
for family in [*range(1, 46), 0x1_0000_0028]:
    try: socket.socket(family, socket.SOCK_STREAM).close(); print(family, 0)
    except OverflowError: print(family, 97)
    except OSError as e: print(family, e.errno)
"""
    lines = (line.split() for line in under(False, code).stdout.splitlines())
    found = {int(family): int(number) for family, number in lines}
    assert {family for family, number in found.items() if number != 97} == {1, 2, 10, 16}
    assert found[1] == found[2] == 0
    raw = "import ctypes; print(ctypes.CDLL(None).syscall(41, ctypes.c_long((1 << 32) | 40), 1, 0))"
    if platform.machine() == "x86_64":
        assert under(False, raw).stdout.strip() == "-1"


def test_nothing_is_typed_into_a_terminal_from_outside() -> None:
    """TIOCSTI and TIOCLINUX, whatever the upper half of the request says (CVE-2017-5226, CVE-2019-10063)."""
    code = """
import ctypes, os
l = ctypes.CDLL(None, use_errno=True)
_, s = os.openpty()
for request in (0x5412, 0x541C, 0xFFFFFFFF00005412):
    ctypes.set_errno(0)
    print(l.ioctl(s, ctypes.c_ulong(request), b"x"), ctypes.get_errno())
"""
    assert under(False, code).stdout.split() == ["-1", "1"] * 3


def test_a_32_bit_call_ends_the_process() -> None:
    """Its numbers mean other calls: a filter that took them for ours would let them all pass."""
    if platform.machine() != "x86_64":
        pytest.skip("int 0x80 is x86's")
    code = (
        "import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\n"
        "m.write(bytes.fromhex('b814000000cd80c3'))\n"  # mov eax, getpid; int 0x80; ret
        "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()\nprint('went on')"
    )
    done = under(False, code)
    assert done.returncode == 128 + 31 and "went on" not in done.stdout


def test_threads_and_processes_start_under_it() -> None:
    """clone3 is gone, so the C library falls back."""
    code = (
        "import threading, subprocess\n"
        "t = threading.Thread(target=lambda: print('thread')); t.start(); t.join()\n"
        "print(subprocess.run(['/bin/echo', 'process'], capture_output=True, text=True).stdout)"
    )
    assert under(False, code).stdout.split() == ["thread", "process"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86-64")
def test_what_is_not_on_the_list_is_refused_whether_or_not_anybody_knows_it() -> None:
    """Calls that few have heard of, and numbers that no kernel has yet."""
    code = """
import ctypes
l = ctypes.CDLL(None, use_errno=True)
for n in [134, 139, 153, 155, 163, 165, 167, 168, 169, 175, 176, 246, 248, 249, 250, 279, 298, 304, 320, *range(500, 1000)]:
    ctypes.set_errno(0)
    if l.syscall(n, -1, -1, -1, -1, -1, -1) < 0 and ctypes.get_errno() == 1: print(n)
"""  # noqa: E501
    assert len(under(False, code).stdout.split()) == 19 + 500


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_filter_is_whole(machine: str) -> None:
    """Eight bytes a line, at most what the kernel takes, and it ends another machine's calls."""
    for nests in (False, True):
        built = program(nests=nests, machine=machine)
        assert len(built) % 8 == 0 and len(built) // 8 <= 4096
        assert built[-8:] == bytes.fromhex("0600000000000080")


def test_a_machine_without_numbers_gets_no_filter() -> None:
    """Never one with another machine's numbers."""
    with pytest.raises(KeyError):
        program(nests=False, machine="riscv64")
