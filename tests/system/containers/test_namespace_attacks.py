"""Hostile commands in the namespace backend: each claim is what one of them tries, under the real agent."""

import ctypes
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.containers.namespaces import Inside, sandbox, spec

pytestmark = pytest.mark.needs_debian("bwrap", "runc")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="a second user needs root on the host")
CALL = "import ctypes; l = ctypes.CDLL(None, use_errno=True)\n"


@pytest.fixture
async def inside(tmp_path: Path, agent_program: Path) -> AsyncIterator[Inside]:
    names = ("agent", "tool") if os.geteuid() == 0 else ("agent",)
    async with sandbox(tmp_path, agent_program, identities=names) as found:
        yield found


async def test_no_listener_of_the_host_is_reached(inside: Inside) -> None:
    """Loopback is its own: what it dials there, or anywhere, is a stream that the host judges."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("::1", 0), family=10) as six:
        server.settimeout(0.2)
        six.settimeout(0.2)
        code = """
import socket, sys
for family, address in ((2, ("127.0.0.1", {v4})), (2, ("10.0.0.1", 80)), (10, ("::1", {v6}))):
    try:
        s = socket.socket(family); s.settimeout(5); s.connect(address)
        s.sendall(b"hello"); print(s.recv(100))
    except OSError as e: print("none")
"""
        ports = {"v4": server.getsockname()[1], "v6": six.getsockname()[1]}
        ran = await inside.python(code.format(**ports))
        assert set(ran.out.split()) <= {"none", "b''"} and ran.code == 0
        for listener in (server, six):
            with pytest.raises(TimeoutError):
                listener.accept()
        assert {stream.kind for stream in inside.opened} <= {"transparent"}
        ran = await inside.sh("ls /sys/class/net 2>/dev/null; cut -d: -f1 -s /proc/net/dev | tail -n +1")
        assert ran.out.split() == ["lo"]


async def test_no_abstract_socket_of_the_host_is_reached(inside: Inside) -> None:
    """They belong to the network namespace; many desktops' buses listen on one."""
    name = "\0coatcheck-" + os.urandom(8).hex()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        code = f"import socket\ntry: socket.socket(1).connect({name!r})\nexcept OSError as e: print(e.errno)"
        assert (await inside.python(code)).out.strip() == "111"
        assert (await inside.sh(f"grep -c {name[1:]} /proc/net/unix")).out.strip() == "0"


async def test_the_hypervisor_below_this_host_is_not_reached(inside: Inside) -> None:
    """AF_VSOCK knows no namespaces: on a cloud machine its other end is the cloud's."""
    code = "import socket\ntry: socket.socket(40, 1)\nexcept OSError as e: print(e.errno)"
    assert (await inside.python(code)).out.strip() == "97"


async def test_no_process_of_the_host_is_seen(inside: Inside) -> None:
    """Its own, and process 1 is the agent; no environment of ours, no signal to us."""
    ran = await inside.sh(
        f"ls /proc | grep -c '^[0-9]'; cat /proc/1/comm; kill -0 {os.getpid()} || echo none"
    )
    count, first, *rest = ran.out.split()
    assert int(count) < 8 and first == "agent" and rest == ["none"]
    assert not (await inside.sh("grep -rl PYTEST_CURRENT_TEST /proc/[0-9]*/environ 2>/dev/null")).out


async def test_nothing_of_the_hosts_files_is_there_but_its_programs(inside: Inside, tmp_path: Path) -> None:
    """Not the daemon's sockets and keys, no home, no disk; nor is any of what is there writable."""
    (tmp_path / "control.sock").write_text("x")
    (tmp_path / "control.sock").chmod(0o777)
    here = Path(__file__).parents[3]
    for place in (
        tmp_path / "control.sock",
        here,
        Path("/root"),
        Path("/var/lib"),
        Path("/sys"),
        Path("/boot"),
    ):
        ran = await inside.sh(f"ls {place} 2>&1 >/dev/null | grep -c 'No such'")
        assert ran.out.strip() == "1", place
    ran = await inside.sh("ls -A / /etc/shadow /run /run/coatcheck 2>/dev/null")
    assert {"usr", "proc", "tmp"} <= set(ran.out.split()) and "shadow" not in ran.out
    mounts = await inside.sh(
        "grep -E ' /(usr|etc|bin|lib)' /proc/self/mounts | cut -d' ' -f2,4 | cut -d, -f1"
    )
    assert {line.split()[1] for line in mounts.out.splitlines() if "/etc/ssl/certs " not in line} == {"ro"}
    prune = "-path /usr -prune -o -path /proc -prune -o"
    found = await inside.sh(f"find / {prune} -writable -not -type l -print 2>/dev/null")
    devices = {
        f"/dev/{name}" for name in ("full", "null", "random", "tty", "urandom", "zero", "ptmx", "pts/ptmx")
    }
    assert set(found.out.split()) - devices == {"/dev/shm", "/home/agent", "/tmp"}


async def test_no_device_is_there_that_reaches_anything(inside: Inside) -> None:
    """No /dev/kvm, no disk, no terminal of ours; and none can be made."""
    ran = await inside.sh("ls /dev; mknod /tmp/kvm c 10 232 2>&1")
    listed = ran.out.split()
    assert set(listed[: listed.index("mknod:")]) - {"core"} == {  # a link that leads nowhere
        *("fd", "full", "null", "ptmx", "pts", "random", "shm"),
        *("stderr", "stdin", "stdout", "tty", "urandom", "zero"),
    }
    assert (await inside.sh("cat < /dev/tty")).code != 0


async def test_the_agent_cannot_be_read_traced_or_ended(inside: Inside) -> None:
    """It holds the channel: a process that has it speaks for every identity."""
    code = (
        CALL
        + """
import os
for path in ("mem", "environ", "maps", "fd/3"):
    try: open(f"/proc/1/{path}").read(); print(path)
    except OSError: pass
for path in ("fd", "root", "cwd"):
    try: os.listdir(f"/proc/1/{path}"); print(path)
    except OSError: pass
print(l.ptrace(16, 1, 0, 0))  # PTRACE_ATTACH
fd = os.pidfd_open(1)
print(l.syscall(438, fd, 3, 0))  # pidfd_getfd
own = ctypes.create_string_buffer(8); piece = (ctypes.c_void_p * 2)(ctypes.addressof(own), 8)
print(l.process_vm_readv(1, piece, 1, piece, 1, 0), ctypes.get_errno())
for n in (9, 19, 15):
    try: os.kill(1, n)
    except OSError: pass
"""
    )
    ran = await inside.python(code)
    assert ran.out.split() == ["-1", "-1", "-1", "1"]
    assert (await inside.sh("echo alive")).out == "alive\n"


async def test_a_command_has_no_right_and_gets_none(inside: Inside) -> None:
    """No capability in any set, for good: not even by a program that has some."""
    ran = await inside.sh("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status")
    values = dict(line.split() for line in ran.out.splitlines())
    assert {name: int(value, 16) for name, value in values.items()} == {
        **dict.fromkeys(("CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"), 0),
        "NoNewPrivs:": 1,
        "Seccomp:": 2,
    }
    for attempt in (
        "mount -t tmpfs x /tmp", "chroot / true", "hostname other", "ip link add x type dummy",
        "ip route add default dev lo", "su -c true root", "echo x > /proc/sys/kernel/core_pattern",
        "echo 1 > /proc/sys/net/ipv4/ip_forward", "echo b > /proc/sysrq-trigger", "dmesg",
        "unshare -n true", "unshare -U true", "unshare -Urm true",
    ):  # fmt: skip
        assert (await inside.sh(attempt)).code not in (0, 127), attempt


@as_root
async def test_a_setuid_program_makes_nobody_somebody_else(inside: Inside) -> None:
    """One identity leaves a program of its own with the bit, the other one runs it."""
    ran = await inside.sh("cp /usr/bin/id /tmp/id && chmod 4755 /tmp/id && ls -l /tmp/id && /tmp/id -u")
    assert ran.out.startswith("-rwsr-xr-x") and ran.out.split()[-1] == "1000"
    assert (await inside.run("/tmp/id", "-u", identity="tool")).out.strip() == "1001"


@as_root
async def test_one_identity_cannot_touch_the_other(inside: Inside) -> None:
    """They hold different handles: no environment, memory, signal or file of the other's."""
    stream = await inside.start("env", "HANDLE=mine", "sleep", "60")
    found = await inside.sh("pidof sleep; while ! pidof sleep; do :; done >/dev/null; pidof sleep")
    pid = found.out.split()[-1]
    ran = await inside.sh(
        f"cat /proc/{pid}/environ; ls /proc/{pid}/fd; kill {pid}; echo x > /home/agent/x; echo done", "tool"
    )
    assert ran.out == "done\n"
    assert (await inside.sh(f"tr '\\0' '\\n' < /proc/{pid}/environ | grep HANDLE")).out == "HANDLE=mine\n"
    stream.reset("done")


async def test_the_redirect_cannot_be_changed_from_a_namespace_of_ones_own(
    tmp_path: Path, agent_program: Path
) -> None:
    """Where commands may nest (bubblewrap around them needs it), root of a nested user namespace is nobody to
    the network namespace, which belongs to the outer one; and a network of his own leads nowhere."""
    async with sandbox(tmp_path, agent_program, nests=True, identities=("agent",)) as inside:
        nested = await inside.sh("unshare -Ur sh -c 'id -u; grep CapEff /proc/self/status'")
        assert nested.out.split() == ["0", "CapEff:", "000001ffffffffff"]  # it is root there
        for attempt in (
            "nft flush ruleset", "nft list ruleset", "nft add table inet x", "iptables-nft -F",
            "ip link set lo down", "ip addr add 10.0.0.1/8 dev lo", "tee /proc/sys/net/ipv4/ip_forward",
            "nsenter -t 1 -n true", "nsenter -t 1 -U true", "mount -t sysfs x /tmp",
        ):  # fmt: skip
            ran = await inside.sh(f"unshare -Ur {attempt}")
            assert ran.code not in (0, 127), attempt
        ran = await inside.sh("unshare -Urn sh -c 'nft add table inet x && ip -o link | wc -l'")
        assert ran.out.strip() == "1"  # his own, with a loopback and nobody behind it
        inside.opened.clear()
        await inside.sh("curl -sS -m 5 http://192.0.2.1/")
        assert [stream.kind for stream in inside.opened] == ["transparent"]


async def test_nothing_is_typed_into_a_terminal(inside: Inside) -> None:
    """Anyone who attaches to a sandbox's terminal must not find themselves typing (CVE-2017-5226)."""
    code = (
        "import fcntl\ntry: fcntl.ioctl(0, 0x5412, b'x'); print('typed')\nexcept OSError as e: print(e.errno)"
    )
    ran = await inside.python(code, pty=True)
    assert ran.out.strip() == "1"


async def test_kernel_interfaces_that_no_command_needs_are_closed(inside: Inside) -> None:
    """keyctl, add_key, bpf, perf_event_open, userfaultfd, io_uring: errno 1, not what they would say."""
    if os.uname().machine != "x86_64":
        pytest.skip("numbers of x86-64")
    code = (
        CALL
        + """
for n in (250, 248, 321, 298, 323, 425, 165, 308):
    l.syscall(n, 0, 0, 0, 0, 0); print(ctypes.get_errno())
"""
    )
    assert (await inside.python(code)).out.split() == ["1"] * 8


async def test_shared_memory_and_queues_of_the_host_are_elsewhere(inside: Inside) -> None:
    """System V and POSIX: namespaces of their own, in both directions."""
    libc = ctypes.CDLL(None, use_errno=True)
    key = int.from_bytes(os.urandom(3)) + 1
    segment = libc.shmget(key, 4096, 0o1666)
    assert segment >= 0
    try:
        ran = await inside.python(CALL + f"print(l.shmget({key}, 0, 0)); print(l.mq_open(b'/coatcheck', 0))")
        assert ran.out.split() == ["-1", "-1"]
    finally:
        libc.shmctl(segment, 0, None)


async def test_two_sandboxes_do_not_see_each_other(tmp_path: Path, agent_program: Path) -> None:
    """No file, no process, no port, and on the host not even the same user."""
    async with sandbox(tmp_path, agent_program) as one, sandbox(tmp_path, agent_program, spec()) as two:
        await one.sh("echo secret > /tmp/x; chmod 666 /tmp/x")
        assert (await two.sh("cat /tmp/x")).code != 0
        users = set()
        for machine in (one.machine, two.machine):
            for remain in await machine.remains():
                if remain.pid:
                    users.add(os.stat(f"/proc/{remain.pid}").st_uid)
        assert len(users) >= 2 or os.geteuid() != 0
