"""QEMU's jail as a command line; that it holds is shown on a running QEMU in test_microvm.py."""

import os
from pathlib import Path

import pytest

from coatcheck.containers import jail
from coatcheck.containers.jail import Jail, arguments, find_qemu, host_user, libraries, limits, parse_ldd
from coatcheck.sandbox.machine import MachineError

PROGRAM = Path("/usr/bin/qemu-system-x86_64")
PLAIN = Jail(PROGRAM, (Path("/lib/libc.so.6"),), kvm=False)


def binds(words: list[str]) -> dict[str, str]:
    """Place in the jail -> how it is mounted."""
    return {words[at + 2]: word for at, word in enumerate(words) if "bind" in word}


def test_it_has_namespaces_of_its_own() -> None:
    """No network, no process, no user, no name of the host."""
    words = arguments(PLAIN, [])
    for kind in ("user", "pid", "net", "ipc", "uts", "cgroup"):
        assert f"--unshare-{kind}" in words


def test_it_ends_with_its_supervisor() -> None:
    """Nothing runs that nobody watches; --new-session because of CVE-2017-5226."""
    assert {"--die-with-parent", "--as-pid-1", "--new-session"} <= set(arguments(PLAIN, []))


def test_it_sees_its_own_program_files_and_cannot_write() -> None:
    """What is not bound is not there: no home, no /etc, no other program."""
    words = arguments(PLAIN, [])
    assert binds(words) == {
        str(PROGRAM): "--ro-bind",
        "/lib/libc.so.6": "--ro-bind",
        "/usr/share/qemu": "--ro-bind-try",
        "/usr/share/seabios": "--ro-bind-try",
    }
    assert words[words.index("--") - 2 : words.index("--")] == ["--remount-ro", "/"]


def test_it_inherits_no_variable_and_no_capability() -> None:
    """The daemon's environment may hold a token of Vault."""
    words = arguments(PLAIN, [])
    assert "--clearenv" in words
    assert words[words.index("--cap-drop") + 1] == "ALL"


def test_the_hypervisor_is_there_only_where_it_is_used() -> None:
    """/dev/kvm is a large part of the kernel."""
    assert "/dev/kvm" not in binds(arguments(PLAIN, []))
    assert binds(arguments(Jail(PROGRAM, (), kvm=True), []))["/dev/kvm"] == "--dev-bind"


def test_qemus_own_words_come_last() -> None:
    """None of them is read as one of bubblewrap's."""
    assert arguments(PLAIN, ["-bind"])[-3:] == ["--", str(PROGRAM), "-bind"]


def test_ldds_answer_is_read() -> None:
    """Names that resolve, the loader, and nothing that the kernel makes up."""
    listed = """\
\tlinux-vdso.so.1 (0x00007ffd)
\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f)
\tlibgone.so => not found
\t/lib64/ld-linux-x86-64.so.2 (0x00007f)
"""
    found = [str(path) for path in parse_ldd(listed) if path.parent.name != "qemu"]
    assert found == ["/lib/x86_64-linux-gnu/libz.so.1", "/lib64/ld-linux-x86-64.so.2"]


@pytest.mark.needs_debian("qemu-system-x86_64")
async def test_qemus_libraries_are_found() -> None:
    """Its C library and the translator, which Debian has in a file of its own."""
    names = {path.name for path in await libraries(find_qemu())}
    assert {"libc.so.6", "ld-linux-x86-64.so.2"} <= names


def test_a_missing_qemu_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the package to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match="qemu-system-x86_64 is missing") as caught:
        find_qemu()
    assert "apt-get install qemu-system-x86" in caught.value.hint


def test_each_machine_has_a_user_of_its_own() -> None:
    """An outbreak owns no other machine's process or file; no user of the host is among them."""
    whole = "0 0 4294967295\n"
    users = {host_user(Path(f"/run/sandboxes/{number}"), whole) for number in range(100)}
    assert len(users) == 100
    assert all(0x70000000 <= user < 0x71000000 for user in users)
    assert host_user(Path("/run/sandboxes/1"), whole) in users


def test_a_container_with_few_users_has_nobody() -> None:
    """A rootless container maps 65,536."""
    assert (
        host_user(Path("/x"), "         0       1000          1\n         1     100000      65535\n") == 65534
    )


def test_a_container_with_root_alone_is_refused() -> None:
    """QEMU as root would be no jail."""
    with pytest.raises(MachineError, match="no user but root"):
        host_user(Path("/x"), "0 1000 1\n")


def test_a_core_would_be_the_guests_memory_in_a_file() -> None:
    """And a file that grows would fill the host."""
    words = limits(address_space=None, file_size=1000, own_user=False)
    assert {"--core=0", "--fsize=1000", "--memlock=0"} <= set(words)
    assert not [word for word in words if word.startswith(("--as", "--nproc"))]


def test_addresses_and_threads_are_limited_where_they_can_be() -> None:
    """Addresses where no cgroup counts memory; threads where the user is nobody else's, too."""
    assert {"--as=5", "--nproc=96"} <= set(limits(address_space=5, file_size=1, own_user=True))


async def test_a_process_is_confined() -> None:
    """By prlimit(1), as the user it is."""
    import asyncio

    process = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        await jail.confine(process.pid, limits(address_space=None, file_size=4096, own_user=False), None)
        held = Path(f"/proc/{process.pid}/limits").read_text()
        score = Path(f"/proc/{process.pid}/oom_score_adj").read_text()
    finally:
        process.kill()
        await process.wait()
    assert [line.split()[-3:-1] for line in held.splitlines() if "core" in line] == [["0", "0"]]
    assert [
        line.split()[-3:-1] for line in held.splitlines() if "file size" in line and "core" not in line
    ] == [["4096", "4096"]]
    assert int(score) == jail.OUT_OF_MEMORY_SCORE or os.geteuid() != 0
