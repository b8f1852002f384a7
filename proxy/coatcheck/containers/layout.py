"""What a sandbox of the host's kernel sees, for bubblewrap and for an OCI runtime (`oci`) alike.

It sees the host's programs, read-only, or an image's root directory instead. It sees no home directory, no
socket, and no device but simple ones such as /dev/null. Everything that can be written is a tmpfs with a
size.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coatcheck.sandbox.sandbox import IDENTITIES

AGENT = "/run/coatcheck/agent"
AGENT_UID = 1000
"""Of the first identity; the others follow. The agent itself is 0 where that can be mapped."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CAPABILITIES_ALONE = ("CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE")
"""Of the agent where one user only can be mapped, and the agent is that user: it closes the network and
listens. Its commands have none."""

WRITABLE = ("/home", "/tmp", "/run", "/dev/shm")  # noqa: S108 - as the sandbox sees them
TRUST_STORE = "/etc/ssl/certs"
"""The agent's to fill: programs that heed no variable look there for whom to trust."""
ETC = (
    *("alternatives", "ca-certificates", "debian_version", "ld.so.cache", "localtime", "mime.types"),
    *("os-release", "protocols", "services", "ssl/openssl.cnf", "java-17-openjdk", "python3"),
)
"""Of the host's /etc: what programs look for, and no line of what administrators write there."""
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class File:
    """A small file that we write into the sandbox, read-only."""

    path: str
    content: bytes
    mode: int = 0o444


@dataclass(frozen=True, slots=True)
class Tmpfs:
    """A place that can be written."""

    path: str
    mib: int
    mode: str


@dataclass(frozen=True, slots=True)
class Layout:
    """One sandbox's."""

    root: Path | None
    """An image's root directory; None: the host's programs."""
    disk_mib: int
    memory_mib: int

    def tmpfs(self) -> tuple[Tmpfs, ...]:
        """In the order of mounting."""
        # One size for each, so that their sum is the disk: a quota over two places is not to be had here.
        temporary = max(1, self.disk_mib // 4)
        places = [
            Tmpfs("/dev/shm", min(64, self.memory_mib // 4), "1777"),  # noqa: S108
            Tmpfs("/run", 16, "0755"),
            Tmpfs("/tmp", temporary, "1777"),  # noqa: S108
            Tmpfs("/home", max(1, self.disk_mib - temporary), "0755"),
        ]
        if self.root is None or (self.root / TRUST_STORE[1:]).is_dir():
            places.append(Tmpfs(TRUST_STORE, 4, "0755"))
        return tuple(places)


def small_files(layout: Layout, identities: Sequence[str]) -> tuple[File, ...]:
    """Users, names and the resolver, which is the agent's own on loopback."""
    users = [(name, AGENT_UID + index) for index, name in enumerate(identities)]
    passwd = ["root:x:0:0:root:/root:/usr/sbin/nologin"]
    passwd += [f"{name}:x:{uid}:{uid}:{name}:/home/{name}:/bin/sh" for name, uid in users]
    group = ["root:x:0:", *(f"{name}:x:{uid}:" for name, uid in users)]
    nobody = ("nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin", "nogroup:x:65534:")
    files = (
        File("/etc/passwd", "\n".join((*passwd, nobody[0], "")).encode()),
        File("/etc/group", "\n".join((*group, nobody[1], "")).encode()),
        File("/etc/hosts", b"127.0.0.1 localhost sandbox\n::1 localhost sandbox\n"),
        File("/etc/resolv.conf", b"nameserver 127.0.0.53\noptions timeout:5 attempts:1\n"),
        File("/etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n"),
    )
    # A file of an image can be covered; where it has none, nothing can be made: it is read-only.
    root = layout.root
    return files if root is None else tuple(file for file in files if (root / file.path[1:]).is_file())


def host_directories() -> tuple[list[str], dict[str, str]]:
    """The host's programs: directories to be seen, and links to be made with what they say."""
    directories, links = ["/usr"], {}
    for name in ("/bin", "/sbin", "/lib", "/lib64"):
        if Path(name).is_symlink():
            links[name] = f"usr{name}"
        elif Path(name).exists():
            directories.append(name)
    return directories, links


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
    words = [
        *("--unshare-user", "--uid", str(AGENT_UID), "--gid", str(AGENT_UID)),
        *("--userns-block-fd", str(given.block), "--info-fd", str(given.info)),
        *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup"),
        *("--hostname", "sandbox", "--as-pid-1", "--die-with-parent"),
        "--new-session",  # no terminal of ours (CVE-2017-5226)
        *("--clearenv", "--setenv", "PATH", PATH, "--setenv", "HOME", "/", "--chdir", "/"),
        *("--cap-drop", "ALL"),
    ]
    for name in CAPABILITIES_ALONE:
        words += ["--cap-add", name]
    words += ["--seccomp", str(given.seccomp)]
    words += ["--ro-bind", str(layout.root), "/"] if layout.root else _host()
    words += ["--proc", "/proc", "--dev", "/dev"]
    for place in layout.tmpfs():
        words += ["--perms", place.mode, "--size", str(place.mib * MIB), "--tmpfs", place.path]
    words += ["--remount-ro", "/dev", "--perms", "0755", "--dir", "/run/coatcheck"]
    words += ["--perms", "0700", "--dir", f"/home/{IDENTITIES[0]}"]
    for file, descriptor in files:
        words += ["--perms", f"{file.mode:04o}", "--ro-bind-data", str(descriptor), file.path]
    return [*words, "--remount-ro", "/", "--", AGENT, "--namespace"]


def _host() -> list[str]:
    directories, links = host_directories()
    words = []
    for path in directories:
        words += ["--ro-bind", path, path]
    for path, target in links.items():
        words += ["--symlink", target, path]
    for directory in ("/etc", "/etc/ssl", "/var"):  # which bubblewrap would make for itself alone
        words += ["--perms", "0755", "--dir", directory]
    for name in ETC:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return [*words, "--symlink", "../tmp", "/var/tmp"]  # noqa: S108 - as the sandbox sees them
