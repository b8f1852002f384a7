"""What a sandbox of the namespace backend sees: bubblewrap's command line, and the small files in it.

Nothing of the host but its programs, read-only, or an image's root directory instead; no home, no socket, no
device that is more than a byte's source. Everything that can be written is a tmpfs with a size.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coatcheck.sandbox.sandbox import IDENTITIES

AGENT = "/run/coatcheck/agent"
AGENT_UID = 1000
"""Of the first identity; the others follow. The agent itself is 0 where that can be mapped."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

CAPABILITIES = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"),
    *("CAP_KILL", "CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE"),
)
"""Of the agent, in its own namespaces: it makes homes, becomes the identities, ends their processes, closes
the network and listens. Its commands have none."""
CAPABILITIES_ALONE = ("CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE")
"""Where one user only can be mapped, and the agent is that user."""

WRITABLE = ("/home", "/tmp", "/run", "/dev/shm")  # noqa: S108 - as the sandbox sees them
RUN_MIB, SHARED_MEMORY_MIB, TRUST_MIB = 16, 64, 4
TRUST_STORE = "/etc/ssl/certs"
"""The agent's to fill: programs that heed no variable look there for whom to trust."""
_ETC = (
    *("alternatives", "ca-certificates", "debian_version", "ld.so.cache", "localtime", "mime.types"),
    *("os-release", "protocols", "services", "ssl/openssl.cnf", "java-17-openjdk", "python3"),
)
"""Of the host's /etc: what programs look for, and no line of what administrators write there."""


@dataclass(frozen=True, slots=True)
class File:
    """A small file that we write into the sandbox, read-only."""

    path: str
    content: bytes
    mode: int = 0o444


@dataclass(frozen=True, slots=True)
class Layout:
    """One sandbox's."""

    root: Path | None
    """An image's root directory; None: the host's programs."""
    several_users: bool
    """0 and all identities are mapped; else the first identity only."""
    disk_mib: int
    memory_mib: int


def small_files(several_users: bool) -> tuple[File, ...]:
    """Users, names and the resolver, which is the agent's own on loopback."""
    users = [(name, AGENT_UID + index) for index, name in enumerate(IDENTITIES)]
    if not several_users:
        users = users[:1]
    passwd = ["root:x:0:0:root:/root:/usr/sbin/nologin"]
    passwd += [f"{name}:x:{uid}:{uid}:{name}:/home/{name}:/bin/sh" for name, uid in users]
    group = ["root:x:0:", *(f"{name}:x:{uid}:" for name, uid in users)]
    nobody = ("nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin", "nogroup:x:65534:")
    return (
        File("/etc/passwd", "\n".join((*passwd, nobody[0], "")).encode()),
        File("/etc/group", "\n".join((*group, nobody[1], "")).encode()),
        File("/etc/hosts", b"127.0.0.1 localhost sandbox\n::1 localhost sandbox\n"),
        File("/etc/resolv.conf", b"nameserver 127.0.0.53\noptions timeout:5 attempts:1\n"),
        File("/etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n"),
    )


@dataclass(frozen=True, slots=True)
class Descriptors:
    """As bubblewrap knows them."""

    block: int
    """Holds it until its users are mapped."""
    info: int
    """Where it says which process it made."""
    seccomp: int
    """The filter of system calls."""


def arguments(layout: Layout, files: Iterable[tuple[File, int]], given: Descriptors) -> list[str]:
    """bubblewrap's; `files` with the descriptor that each is read from."""
    user = "0" if layout.several_users else str(AGENT_UID)
    words = [
        *("--unshare-user", "--uid", user, "--gid", user),
        *("--userns-block-fd", str(given.block), "--info-fd", str(given.info)),
        *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup"),
        *("--hostname", "sandbox", "--as-pid-1", "--die-with-parent"),
        "--new-session",  # no terminal of ours (CVE-2017-5226)
        *("--clearenv", "--setenv", "PATH", PATH, "--setenv", "HOME", "/", "--chdir", "/"),
        *("--cap-drop", "ALL"),
    ]
    for name in CAPABILITIES if layout.several_users else CAPABILITIES_ALONE:
        words += ["--cap-add", name]
    words += ["--seccomp", str(given.seccomp)]
    words += _image(layout.root) if layout.root else _host()
    words += ["--proc", "/proc", "--dev", "/dev"]
    words += _tmpfs("/dev/shm", min(SHARED_MEMORY_MIB, layout.memory_mib // 4), "1777")  # noqa: S108
    words += ["--remount-ro", "/dev"]
    words += _tmpfs("/run", RUN_MIB, "0755")
    words += ["--perms", "0755", "--dir", "/run/coatcheck"]
    # One size for each, so that their sum is the disk: a quota over two places is not to be had here.
    temporary = max(1, layout.disk_mib // 4)
    words += _tmpfs("/tmp", temporary, "1777")  # noqa: S108
    words += _tmpfs("/home", max(1, layout.disk_mib - temporary), "0755")
    if not layout.several_users:
        words += ["--perms", "0700", "--dir", f"/home/{IDENTITIES[0]}"]
    for file, descriptor in files:
        words += ["--perms", f"{file.mode:04o}", "--ro-bind-data", str(descriptor), file.path]
    return [*words, "--remount-ro", "/", "--", AGENT, "--namespace"]


def _tmpfs(path: str, mib: int, mode: str) -> Sequence[str]:
    return ("--perms", mode, "--size", str(mib * 1024 * 1024), "--tmpfs", path)


def _host() -> list[str]:
    words = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib64"):
        place = Path("/") / name
        if place.is_symlink():
            words += ["--symlink", f"usr/{name}", f"/{name}"]
        elif place.exists():
            words += ["--ro-bind", str(place), str(place)]
    for directory in ("/etc", "/etc/ssl", "/var"):  # which bubblewrap would make for itself alone
        words += ["--perms", "0755", "--dir", directory]
    for name in _ETC:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    words += _tmpfs(TRUST_STORE, TRUST_MIB, "0755")
    return [*words, "--symlink", "../tmp", "/var/tmp"]  # noqa: S108 - as the sandbox sees them


def _image(root: Path) -> list[str]:
    words = ["--ro-bind", str(root), "/"]
    if (root / TRUST_STORE[1:]).is_dir():
        words += _tmpfs(TRUST_STORE, TRUST_MIB, "0755")
    return words
