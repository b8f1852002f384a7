"""What stands between the sandbox and the host: a bubblewrap command line, and whether it works here."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NAMESPACES = {"user": "user", "net": "network", "pid": "process", "ipc": "IPC", "uts": "UTS", "mnt": "mount"}
"""Of `/proc/self/ns`, and what people call them."""

HOME = Path("/home/agent")
SOCKET = Path("/run/coatcheck/egress.sock")
TRUST = Path("/run/coatcheck/trust")
PROGRAMS = Path("/opt/demo")
PORT = 8080
"""Of the forwarder. In a network namespace of its own every port is free."""

_PROBE_SECONDS = 20.0
_PROBE = "import json,os;print(json.dumps({k: os.readlink('/proc/self/ns/' + k) for k in %r}))"


@dataclass(frozen=True, slots=True)
class Layout:
    """What of the host a sandbox sees, read-only, besides the system's programs."""

    socket: Path
    """The session's Unix socket: the only way out."""
    trust: Path
    """Directory of the certificates to trust."""
    programs: Path
    """Directory of the demo's programs that run inside."""
    python: tuple[Path, ...]
    """The interpreter and its packages: `sys.prefix` and `sys.base_prefix`."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """What can be had here."""

    bubblewrap: str | None
    """Its path; None: the sandbox runs as an ordinary child, not isolated."""
    says: str
    """For the first line: which namespaces, or why none."""


def bubblewrap_arguments(
    layout: Layout, environment: Mapping[str, str], command: Sequence[str]
) -> tuple[str, ...]:
    """bwrap's arguments for `command`: its own namespaces, nothing of the host that could be written."""
    arguments = [
        "--unshare-all",
        *("--unshare-user", "--uid", "1000", "--gid", "1000"),  # --unshare-all only tries to
        *("--hostname", "sandbox"),
        "--die-with-parent",
        "--new-session",  # no TIOCSTI into our terminal (CVE-2017-5226)
        *("--cap-drop", "ALL"),
        "--clearenv",
        *("--ro-bind", "/usr", "/usr"),
        *(
            word
            for name in ("bin", "sbin", "lib", "lib64")
            for word in ("--symlink", f"usr/{name}", f"/{name}")
        ),
        # Not all of /etc: as root on the host, its private files would be readable inside.
        *("--ro-bind-try", "/etc/alternatives", "/etc/alternatives"),
        *("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"),
        *("--ro-bind-try", "/etc/ssl/openssl.cnf", "/etc/ssl/openssl.cnf"),
        *("--proc", "/proc"),  # of its own process namespace
        *("--dev", "/dev"),
        *("--tmpfs", "/tmp"),  # noqa: S108 - the sandbox's own
        *("--tmpfs", str(HOME)),
    ]
    outside_usr = [path for path in layout.python if not path.is_relative_to("/usr")]
    for path in outside_usr:
        arguments += ["--ro-bind", str(path), str(path)]
    arguments += ["--ro-bind", str(layout.programs), str(PROGRAMS)]
    arguments += ["--ro-bind", str(layout.trust), str(TRUST)]
    arguments += ["--bind", str(layout.socket), str(SOCKET)]
    for name, value in environment.items():
        arguments += ["--setenv", name, value]
    return (*arguments, "--chdir", str(HOME), "--", *command)


def python_paths() -> tuple[Path, ...]:
    """Where this interpreter and its packages are."""
    return tuple(dict.fromkeys((Path(sys.base_prefix), Path(sys.prefix))))


def probe() -> Isolation:
    """Runs a command in a sandbox like the demo's, and compares its namespaces with ours."""
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        return Isolation(None, "bubblewrap is missing (apt-get install bubblewrap)")
    nothing = Layout(Path("/dev/null"), Path("/usr"), Path("/usr"), python_paths())
    command = [sys.executable, "-I", "-S", "-c", _PROBE % (tuple(NAMESPACES),)]
    try:
        ran = subprocess.run(
            [bubblewrap, *bubblewrap_arguments(nothing, {}, command)],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Isolation(None, f"bubblewrap does not run here ({type(error).__name__})")
    if ran.returncode:
        why = (ran.stderr.strip().splitlines() or ["no reason given"])[-1]
        return Isolation(None, f"the kernel gives no namespaces here ({why})")
    shared = shared_namespaces(json.loads(ran.stdout))
    if shared:
        return Isolation(None, f"bubblewrap shares the host's {', '.join(shared)} namespace")
    kinds = list(NAMESPACES.values())
    return Isolation(bubblewrap, f"own {', '.join(kinds[:-1])} and {kinds[-1]} namespaces, by bubblewrap")


def shared_namespaces(inside: Mapping[str, str]) -> list[str]:
    """Which of `inside`'s namespaces are this process's own."""
    return [
        name
        for kind, name in NAMESPACES.items()
        if inside.get(kind) in (None, os.readlink(f"/proc/self/ns/{kind}"))
    ]
