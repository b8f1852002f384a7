"""Commands behind a policy's `filesystem`, run in a throw-away root, and what they try to get around it."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from coatcheck.containers.filesystem import EXECUTED_DIRECTORIES, EXECUTED_FILES, REFUSED, script, wrap
from coatcheck.decision.filesystem import Filesystem
from coatcheck.decision.session import Isolation

pytestmark = pytest.mark.needs_debian("bwrap", "runc")

HOME = "/home/agent"
MACHINE = (
    *("--unshare-user", "--uid", "1000", "--gid", "1000", "--unshare-pid", "--die-with-parent"),
    *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/home", "--tmpfs", "/tmp"),
    *("--tmpfs", "/srv", "--tmpfs", "/run", "--dir", HOME, "--chdir", HOME),
    # A checkout may lie below /tmp or /home.
    *(word for place in (sys.base_prefix, sys.prefix) for word in ("--ro-bind", place, place)),
)
"""Stands for a machine whose user is 1000."""
DRIVER = """
import json, subprocess, sys
for arguments, environment in json.load(sys.stdin):
    p = subprocess.run(arguments, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    print(json.dumps([p.returncode, p.stdout, p.stderr]))
"""


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    errors: str


ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": HOME}


def run(
    filesystem: Filesystem,
    *steps: str | tuple[str, ...],
    environment: Mapping[str, str] = ENVIRONMENT,
    machine: tuple[str, ...] = (),
) -> list[Done]:
    """In one machine, one after the other: a string is a wrapped shell command, a tuple is run as it is."""
    todo: list[tuple[Sequence[str], Mapping[str, str]]] = []
    for step in steps:
        if isinstance(step, str):
            wrapped = wrap(filesystem, ("sh", "-c", step), environment, Isolation.EMULATED)
            todo.append((wrapped.arguments, wrapped.environment))
        else:
            todo.append((step, ENVIRONMENT))
    done = subprocess.run(
        ["bwrap", *MACHINE, *machine, sys.executable, "-I", "-S", "-c", DRIVER],
        input=json.dumps(todo),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return [Done(*json.loads(line)) for line in done.stdout.splitlines()]


def setup(text: str) -> tuple[str, ...]:
    """Before or between commands, by somebody who is not confined."""
    return ("sh", "-ec", text)


def test_nothing_is_written_but_what_the_policy_names_and_tmp() -> None:
    """Everything else is read-only, also where the user's own permissions would let him."""
    found = run(
        Filesystem(allow_write=("/srv/out",)),
        setup("mkdir /srv/out /srv/in; echo secret > /srv/in/file"),
        "echo 1 > /srv/out/a && echo 2 > /tmp/b && cat /srv/out/a /tmp/b /srv/in/file",
        "echo x > /home/agent/c",
        "echo x >> /srv/in/file",
        "rm -f /srv/in/file; mv /srv/in /srv/elsewhere; ln -s x /srv/link",
        setup("cat /srv/out/a /srv/in/file; ls /srv"),
    )
    assert found[1] == Done(0, "1\n2\nsecret\n", "")
    assert [done.code != 0 and "Read-only" in done.errors for done in found[2:5]] == [True] * 3
    assert found[5].out == "1\nsecret\nin\nout\n"


def test_a_policy_that_allows_no_place_still_leaves_tmp() -> None:
    """`filesystem: {}` is the strictest."""
    found = run(Filesystem(), "echo 1 > /tmp/a && cat /tmp/a", "touch /home/agent/x")
    assert [done.code for done in found] == [0, 1]


def test_what_is_denied_cannot_be_read_by_any_way() -> None:
    """A file, a directory, what is below it, by name, by /proc, and with what could be mounted over it."""
    found = run(
        Filesystem(allow_write=(HOME,), deny_read=(f"{HOME}/.ssh", "/srv/key")),
        setup("mkdir -p .ssh/deep; echo secret > .ssh/id; echo secret > .ssh/deep/x; echo secret > /srv/key"),
        "cat .ssh/id", "ls .ssh", "cat .ssh/deep/x", "cat /srv/key",
        "for process in self 1 $PPID $(ls /proc); do (cd /proc/$process/root && cat srv/key); done",
        "umount .ssh; umount /srv/key; cat .ssh/id /srv/key",
        "unshare -Urm sh -c 'umount .ssh; umount -l /home/agent/.ssh; umount /srv/key; cat .ssh/id /srv/key'",
        "unshare -Urm sh -c 'mount --bind / /mnt; cat /mnt/home/agent/.ssh/id /mnt/srv/key'",
        "chmod -R 777 .ssh; cat .ssh/id",
        "ln .ssh/id copy; ln /srv/key copy; cat copy",
        "mv .ssh moved; cat moved/id; rm -rf .ssh; cat .ssh/id",
    )  # fmt: skip
    assert [done.out for done in found[1:]] == [""] * (len(found) - 1)
    assert all(done.code != 0 for done in found[1:])


def test_a_hidden_place_cannot_be_moved_away_from_its_name() -> None:
    """Anyone who may write the directory above would move it, and the next command would find it unhidden."""
    filesystem = Filesystem(allow_write=(HOME,), deny_read=(f"{HOME}/a/b/key",))
    found = run(
        filesystem,
        setup("mkdir -p a/b; echo secret > a/b/key"),
        "mv a/b a/c", "mv a z", "mv a/b/key a/b/x", "rm -rf a",
        "mv /home/agent /home/other",
        "cat a/b/key a/c/key z/b/key a/b/x",
        setup("cat a/b/key"),
    )  # fmt: skip
    assert all(done.code != 0 for done in found[1:-1])
    assert "secret" not in "".join(done.out for done in found[1:-1])
    assert found[-1].out == "secret\n"


def test_what_is_hidden_in_tmp_cannot_be_moved_away_from_its_name() -> None:
    """Everybody may write /tmp, whatever the policy names."""
    found = run(
        Filesystem(deny_read=("/tmp/a/key",)),
        setup("mkdir /tmp/a; echo secret > /tmp/a/key"),
        "mv /tmp/a /tmp/b",
        "cat /tmp/a/key /tmp/b/key",
    )
    assert [done.code != 0 for done in found[1:]] == [True, True]
    assert found[2].out == ""


SWAP = """
import ctypes, os, time
os.mkdir("/srv/out/.git")
os.symlink("..", "/srv/out/link")
if os.fork():
    os._exit(0)
os.setsid()
for number in range(3):
    os.dup2(os.open("/dev/null", os.O_RDWR), number)
while True:
    ctypes.CDLL(None).renameat2(-100, b"/srv/out/.git", -100, b"/srv/out/link", 2)  # RENAME_EXCHANGE
    time.sleep(0.005)
"""


def test_a_link_that_is_swapped_in_between_look_and_mount_opens_nothing() -> None:
    """One command swaps; without the look from inside every fourth of the others could write above `out`."""
    found = run(
        Filesystem(allow_write=("/srv/out",)),
        setup("mkdir /srv/out"),
        "cat > /tmp/swap.py << 'X'\n" + SWAP + "\nX\npython3 /tmp/swap.py",
        *["touch /srv/written && echo written"] * 30,
        setup("ls /srv"),
    )
    assert found[1].code == 0
    assert [done.out for done in found[2:-1]] == [""] * 30
    assert found[-1].out == "out\n"


def test_a_volume_below_a_place_can_be_written() -> None:
    """It was mounted before there was a command, so nobody in there put it."""
    found = run(
        Filesystem(allow_write=("/run/user",), deny_read=("/run/user/volume/a/key",)),
        setup("mkdir -p '/run/user/with space/volume' /run/user/volume/a"),
        "echo x > '/run/user/with space/volume/a' && echo y > /run/user/volume/a/b && echo written",
        machine=(*("--tmpfs", "/run/user/with space/volume"), *("--tmpfs", "/run/user/volume")),
    )
    assert found[1] == Done(0, "written\n", "")


def test_a_place_that_leads_through_a_link_starts_nothing() -> None:
    """A mount follows a link: what was denied would stay open, or something else become writable."""
    for filesystem in (
        Filesystem(allow_write=("/srv/link",)),
        Filesystem(allow_write=("/srv/link/below",)),
        Filesystem(deny_read=("/srv/link",)),
        Filesystem(deny_read=("/srv/dangling",)),
        Filesystem(deny_read=("/srv/link/below",)),
    ):
        found = run(
            filesystem,
            setup("mkdir -p /srv/real/below; ln -s real /srv/link; ln -s nowhere /srv/dangling"),
            "echo started",
        )
        assert found[1].code == REFUSED and found[1].out == ""
        assert "symbolic link" in found[1].errors


def test_a_place_that_may_be_written_is_made_where_the_user_could_have_made_it() -> None:
    """Nobody could from inside. One policy serves many images: what cannot be made is left out."""
    found = run(
        Filesystem(
            allow_write=("/srv/new/place", "/none/of/ours"), deny_read=("/srv/nothing", "/none/at/all")
        ),
        "echo started; echo mine > /srv/new/place/file; cat /srv/new/place/file; mkdir /none /srv/new/other",
    )
    assert found[0].out == "started\nmine\n"
    assert "'/none'" in found[0].errors and "'/srv/new/other': Read-only" in found[0].errors


def test_files_that_run_for_whoever_comes_next_are_read_only() -> None:
    """The other identity, or the person who gets the directory back, would run what they say."""
    names = " ".join(
        (*EXECUTED_FILES, *(f"{name}/x" for name in EXECUTED_DIRECTORIES), ".git/hooks/pre-commit")
    )
    found = run(
        Filesystem(allow_write=(HOME,)),
        setup("git init -q .; echo mine > .bashrc; mkdir .vscode; echo task > .vscode/tasks.json"),
        f"for name in {names} .git/config; do ( echo evil >> $name ) 2>/dev/null && echo $name; done; true",
        "rm -rf .git/hooks .git/config .vscode .claude .bashrc .mcp.json",
        "mv .git x; mv .claude y; mv .bashrc z; ln -sf x .zshrc; ln -sfn /tmp .git/hooks; ln -sfn /tmp .idea",
        f"for name in {names} .git/config; do [ ! -s $name ] || grep -l evil $name; done",
        setup("cat .bashrc .mcp.json; ls -d .git .claude .vscode; [ ! -s .zshrc ]"),
        "echo fine > code.py && git add code.py && git status --short -uno",
    )  # fmt: skip
    assert found[1] == Done(0, "", "")
    assert found[4].out == ""
    assert found[5] == Done(0, "mine\n{}.claude\n.git\n.vscode\n", "")
    assert found[6] == Done(0, "A  code.py\n", "")


def test_a_placeholder_is_not_made_where_a_link_leads() -> None:
    """The shell that makes it is not confined yet."""
    found = run(
        Filesystem(allow_write=("/srv/mine",)),
        setup("mkdir /srv/mine; echo precious > /srv/other; ln -s ../other /srv/mine/.mcp.json"),
        "echo started",
        setup("cat /srv/other"),
    )
    assert found[1].code == REFUSED
    assert found[2].out == "precious\n"


def test_no_variable_steers_what_runs_before_the_command() -> None:
    """A library or a program from a place that the sandbox may write would run with nothing around it."""
    evil = f"{HOME}/bin"
    environment = {
        "PATH": f"{evil}:/usr/bin:/bin",
        "LD_PRELOAD": f"{evil}/none.so",
        "ENV": f"{evil}/rc",
        "A": "b",
    }
    wrapped = wrap(Filesystem(allow_write=(HOME,)), ("/usr/bin/env",), environment, Isolation.EMULATED)
    assert wrapped.environment == {"PATH": environment["PATH"], "A": "b"}
    found = run(
        Filesystem(allow_write=(HOME,)),
        setup(
            f"mkdir {evil}; cd {evil}; printf '#!/bin/sh\\necho $0 >> /srv/log\\n' > sh; chmod +x sh;"
            " for name in bwrap readlink mkdir env cat; do cp sh $name; done"
        ),
        ("env", "-i", *(f"{k}={v}" for k, v in wrapped.environment.items()), *wrapped.arguments),
        setup("cat /srv/log 2>/dev/null || echo nothing ran"),
    )  # fmt: skip
    said = dict(line.split("=", 1) for line in found[1].out.splitlines())
    assert said | environment == said
    assert found[2].out == "nothing ran\n"


def test_a_command_keeps_its_directory_exit_code_and_words() -> None:
    """Whatever stands in them."""
    odd = "a 'b' \"c\" $(d) `e` \\\\ *\n--help"
    wrapped = wrap(Filesystem(), ("printf", "%s", odd, "--", "-x"), ENVIRONMENT, Isolation.EMULATED)
    found = run(
        Filesystem(allow_write=("/srv",)),
        wrapped.arguments,
        "cd /srv; exit 7",
        "pwd",
        "kill -9 $$",
        "no-such-program",
    )
    assert found[0].out == odd + "---x"
    assert found[1].code == 7
    assert found[2].out == HOME + "\n"
    assert found[3].code == 128 + 9
    assert found[4].code == 127


def test_places_with_odd_names_are_places() -> None:
    """A policy's text never becomes a command."""
    place = "/srv/a 'b' \"$(touch /srv/ran)\" `touch /srv/ran`;touch x"
    quoted = place.replace("'", "'\\''")
    found = run(
        Filesystem(allow_write=(place,), deny_read=(place + "/hidden",)),
        setup(f"mkdir -p '{quoted}/hidden'; echo secret > '{quoted}/hidden/x'"),
        f"cd '{quoted}' && echo 1 > y && cat y; cat hidden/x",
        setup("ls /srv | wc -l"),
    )
    assert found[1].out == "1\n" and "Permission denied" in found[1].errors
    assert found[2].out == "1\n"


def test_in_the_namespace_backend_no_command_starts_without_its_filter() -> None:
    """The kernel is the host's there: a filter that is missing is no filter."""
    wrapped = wrap(Filesystem(), ("echo", "started"), ENVIRONMENT, Isolation.NAMESPACE)
    found = run(Filesystem(), wrapped.arguments)
    assert found[0].code != 0 and found[0].out == ""
    assert "--seccomp" in script(Filesystem(), Isolation.NAMESPACE)
    assert "--seccomp" not in script(Filesystem(), Isolation.EMULATED)
