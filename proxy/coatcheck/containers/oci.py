"""The config.json (OCI runtime specification 1.0.2) and the root directory of a sandbox.

Sandboxes with the host's programs share one root directory, which the host's root owns and nobody can write
to. It holds only mount points and the small files that all of them have.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coatcheck.containers import seccomp
from coatcheck.containers.layout import (
    AGENT_UID,
    ETC,
    MIB,
    PATH,
    TRUST_STORE,
    File,
    Layout,
    host_directories,
)
from coatcheck.sandbox.sandbox import IDENTITIES

ROOTS: Final = Path("/run/coatcheck-roots")
"""Readable for everyone: the user that runs a sandbox has no rights on the host, and must reach it."""
OPEN_FILES: Final = 8192
"""A process. Browsers take thousands; the kernel's memory for them is counted in a cgroup only."""
CAPABILITIES: Final = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"),
    *("CAP_KILL", "CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE"),
)
"""Of the agent, in its own namespaces: it makes homes, becomes the identities, ends their processes, closes
the network and listens. Its commands have none."""
_MASKED: Final = (
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats"),
)
"""What /proc tells of the host, as Docker hides it."""
_READ_ONLY: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


@dataclass(frozen=True, slots=True)
class Container:
    """What is to run."""

    layout: Layout
    root: Path
    """Its root directory on the host."""
    binds: Mapping[str, Path]
    """Single files, read-only: where they are seen, and what they are on the host."""
    cgroup: str | None
    """Relative to our own; None: none."""
    rlimits: Mapping[str, int]
    user: int | None
    """The first of its users on the host; None: the runtime maps whom it can."""
    nests: bool
    arguments: Sequence[str]


def config(container: Container) -> dict[str, Any]:
    """Its config.json."""
    capabilities = list(CAPABILITIES)
    linux: dict[str, Any] = {
        "namespaces": [{"type": each} for each in ("pid", "network", "ipc", "uts", "mount", "cgroup")],
        "maskedPaths": list(_MASKED),
        "readonlyPaths": list(_READ_ONLY),
        "seccomp": seccomp.profile(nests=container.nests),
        "resources": {"devices": [{"allow": False, "access": "rwm"}]},
    }
    if container.user is not None:
        # One block: neither the host's root nor any of its users is anybody in there.
        ids = [
            {"containerID": 0, "hostID": container.user, "size": 1},
            {"containerID": AGENT_UID, "hostID": container.user + 1, "size": len(IDENTITIES)},
        ]
        linux |= {"uidMappings": ids, "gidMappings": ids}
        linux["namespaces"].append({"type": "user"})
    if container.cgroup is not None:
        linux["cgroupsPath"] = container.cgroup
    return {
        "ociVersion": "1.0.2",
        "process": {
            "args": list(container.arguments),
            "env": [f"PATH={PATH}", "HOME=/"],
            "cwd": "/",
            "user": {"uid": 0, "gid": 0},
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "rlimits": [{"type": k, "soft": v, "hard": v} for k, v in container.rlimits.items()],
            "noNewPrivileges": True,
        },
        "root": {"path": str(container.root), "readonly": True},
        "hostname": "sandbox",
        "mounts": _mounts(container),
        "linux": linux,
    }


def _mounts(container: Container) -> list[dict[str, Any]]:
    mounts = [
        _mount("proc", "/proc", "nosuid", "noexec", "nodev"),
        # gVisor takes a device on a read-only filesystem for one that cannot be written.
        _mount("tmpfs", "/dev", "nosuid", "strictatime", "mode=0755", "size=64k", *_read_only(container)),
        _mount("devpts", "/dev/pts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
    ]
    if container.layout.root is None:
        directories, _ = host_directories()
        shown = [*directories, *(f"/etc/{name}" for name in _etc())]
        mounts += [_bind(path, Path(path)) for path in shown]
    for place in container.layout.tmpfs():
        size = (f"mode={place.mode}", f"size={place.mib * MIB}")
        mounts.append(_mount("tmpfs", place.path, "nosuid", "nodev", *size))
    return [*mounts, *(_bind(path, source) for path, source in container.binds.items())]


def _read_only(container: Container) -> tuple[str, ...]:
    return ("ro",) if container.user is not None else ()


def _mount(kind: str, path: str, *options: str) -> dict[str, Any]:
    return {"destination": path, "type": kind, "source": kind, "options": list(options)}


def _bind(path: str, source: Path) -> dict[str, Any]:
    options = ["rbind", "ro", "nosuid", "nodev"]
    return {"destination": path, "type": "bind", "source": str(source), "options": options}


def _etc() -> list[str]:
    return [name for name in ETC if (Path("/etc") / name).exists()]


def host_root(files: Sequence[File], own: Path | None = None) -> Path:
    """The root directory of sandboxes with the host's programs; made if it is not there. `own`: in which to
    make it, where we are not root; None: for all."""
    directories, links = host_directories()
    places = {name: (Path("/etc") / name).is_dir() for name in _etc()}
    written = [(file.path, file.content.decode()) for file in files]
    made_of = json.dumps([directories, links, places, written]).encode()
    roots = own or ROOTS
    root = roots / hashlib.sha256(made_of).hexdigest()[:32]
    roots.mkdir(exist_ok=True)
    if own is None:
        roots.chmod(0o755)  # a supervisor's umask lets nobody in
    if root.is_dir():
        return root
    with tempfile.TemporaryDirectory(dir=roots, prefix=".new-") as place:
        new = Path(place) / "root"
        for path in (*directories, "/proc", "/dev", "/run", "/tmp", "/home", "/var", TRUST_STORE):  # noqa: S108
            (new / path[1:]).mkdir(parents=True, exist_ok=True)
        for name, is_directory in places.items():
            target = new / "etc" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.mkdir() if is_directory else target.touch()
        for path, target_of in {**links, "/var/tmp": "../tmp"}.items():  # noqa: S108
            (new / path[1:]).symlink_to(target_of)
        for file in files:
            (new / file.path[1:]).write_bytes(file.content)
        for each in (new, *new.rglob("*")):
            if not each.is_symlink():
                each.chmod(0o755 if each.is_dir() else 0o444)
        try:
            new.rename(root)
        except OSError:  # another was faster
            shutil.rmtree(new, ignore_errors=True)
    return root
