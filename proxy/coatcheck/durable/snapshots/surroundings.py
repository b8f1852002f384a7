"""In the supervisor: describes a machine's host, and decides whether a saved machine can continue on it."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from coatcheck.containers.jail import find_qemu
from coatcheck.decision.session import Isolation
from coatcheck.durable.snapshots.manifest import SnapshotError, Surroundings
from coatcheck.platform.private_files import write_atomically
from coatcheck.sandbox.machine import MachineSpec

MAX_REMEMBERED: Final = 64
"""Files whose digests are remembered: a few QEMUs and images."""
CLOCKS_APART: Final = 0.001
"""How far a host's time stamp counter may run from what a guest was told: 4 s an hour. Two measurements of
one host are 10 ppm apart."""
_SAME: Final[dict[str, tuple[str, str]]] = {
    "memory_mib": ("MiB of memory", "ask for as much as it had"),
    "cpus": ("CPUs", "ask for as many as it had"),
    "disk_mib": ("MiB of disk", "ask for as much as it had"),
    "volumes": ("volumes", "give it the volumes that it had"),
}
_PARTS: Final = {"kernel": "vmlinuz", "initrd": "initrd", "root": "root.ext4"}


def around(
    spec: MachineSpec, image: Path, remembered: Path, qemu_version: str, khz: int | None
) -> Surroundings:
    """Blocking: hundreds of MB are read where nobody has yet; their digests are kept in `remembered`."""
    digest = _remembering(remembered)
    return Surroundings(
        isolation=spec.isolation,
        memory_mib=spec.resources.memory_mib,
        cpus=spec.resources.cpus,
        disk_mib=spec.resources.disk_mib,
        volumes=len(spec.volumes),
        balloon=spec.starts_with is not None,
        qemu=digest(find_qemu()),
        qemu_version=qemu_version,
        **{part: digest(image / file) for part, file in _PARTS.items()},
        processor=_processor() if spec.isolation is Isolation.HARDWARE else "",
        tsc_khz=khz,
    )


def check(saved: Surroundings, here: Surroundings) -> None:
    """SnapshotError when a machine of `saved` cannot go on `here`; the first difference is told."""
    if saved.isolation is not here.isolation:
        raise SnapshotError(
            f"it was isolated as {saved.isolation}, and this machine gives {here.isolation}",
            "restore it on a host of its kind: a credential may have been granted for exactly that",
        )
    for name, (what, hint) in _SAME.items():
        if getattr(saved, name) != getattr(here, name):
            raise SnapshotError(f"it had {getattr(saved, name)} {what}, not {getattr(here, name)}", hint)
    if saved.balloon is not here.balloon:
        raise SnapshotError(
            "it could be resized while it ran, and this machine could not, or the other way round",
            "ask for a sandbox that grows if it was one",
        )
    if saved.qemu != here.qemu:
        raise SnapshotError(
            f"it was saved by another QEMU ({saved.qemu_version or 'of unknown version'})",
            "the saved device state fits only that build: install it,"
            " or start a new sandbox and import the files",
        )
    for part, file in _PARTS.items():
        if getattr(saved, part) != getattr(here, part):
            raise SnapshotError(
                f"it was saved with another image: the {file} differs",
                "name the image that it used: coatcheck image list; a removed image cannot be rebuilt",
            )
    if saved.processor != here.processor:
        raise SnapshotError(
            f"it was saved on another CPU ({saved.processor}), and its programs may use what this one lacks",
            "restore it on a host with that CPU",
        )
    if saved.tsc_khz and here.tsc_khz and abs(saved.tsc_khz / here.tsc_khz - 1) > CLOCKS_APART:
        raise SnapshotError(
            f"its clock counts {saved.tsc_khz} kHz, and this host's {here.tsc_khz}: it would run wrong",
            "restore it on a host of the same kind",
        )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def _remembering(remembered: Path) -> Callable[[Path], str]:
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        known = dict(json.loads(remembered.read_bytes()))

    def digest(path: Path) -> str:
        try:
            with path.open("rb") as file:
                about = os.fstat(file.fileno())
                # The change time, which no program can set: what was written to since has another.
                key = f"{about.st_dev}:{about.st_ino}:{about.st_size}:{about.st_ctime_ns}"
                if key not in known:
                    known[key] = hashlib.file_digest(file, "sha256").hexdigest()
                    for oldest in list(known)[:-MAX_REMEMBERED]:
                        del known[oldest]
                    with contextlib.suppress(OSError):  # it saves time, no more
                        write_atomically(remembered, json.dumps(known).encode(), overwrite=True)
                return known[key]
        except OSError as error:
            raise SnapshotError(
                f"{path} cannot be read: {error.strerror}", "coatcheck image build"
            ) from error

    return digest
