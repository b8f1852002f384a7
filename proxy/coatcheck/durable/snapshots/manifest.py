"""In daemon and supervisor: signs what a snapshot is, so that a change of it or of one of its files is
detected.

The key stays with the state directory. A user who can write there is trusted with more than this; it is
against what was copied, cut, mixed up, or came from elsewhere.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from coatcheck.decision.session import Isolation
from coatcheck.platform.private_files import PrivateFileError, read_private, write_atomically
from coatcheck.sandbox.machine import MachineError

FORMAT: Final = 1
NAME: Final = "manifest.json"
KEY_BYTES: Final = 32
MAX_BYTES: Final = 8 * 1024 * 1024
"""Of a manifest. One of 64 GiB memory and a 256 GiB disk has 6 MB."""
_PURPOSE: Final = b"coatcheck snapshot\n"


class SnapshotError(MachineError):
    """A snapshot cannot be made or used. The message says what happened; `hint` what to do next."""


class BrokenArchive(SnapshotError):
    """An exported snapshot cannot be taken. The message says why."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the archive cannot be taken: {why}", "export it again, and check the passphrase")


@dataclass(frozen=True, slots=True)
class Image:
    """One file of a snapshot; see `memory_image`."""

    size: int
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose memory it is."""

    sandbox: str
    sessions: tuple[str, ...]
    """Ids of all whose handles its processes may hold: its own sessions, and their ancestors."""
    created_at: float
    """Unix time."""
    trust: str = ""
    """`trust.digest` of what its clients trust; empty: nobody knows."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What must be the same for the machine to go on: its devices' state fits nothing else."""

    isolation: Isolation
    memory_mib: int
    cpus: int
    disk_mib: int
    volumes: int
    """How many disks it had beside its own."""
    balloon: bool
    """Whether it had the device by which memory is taken from a running guest."""
    qemu: str
    """Digest of the program."""
    qemu_version: str
    """For people."""
    kernel: str
    initrd: str
    root: str
    """Digests of the image's files."""
    processor: str
    """The host's CPU where the guest has it, else empty."""
    tsc_khz: int | None
    """What a guest without KVM was told."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A whole snapshot: where there is one, its files were on disk before."""

    origin: Origin
    generation: int
    surroundings: Surroundings
    memory: Image
    devices: Image
    overlay: Image
    format: int = FORMAT


def open_key(path: Path) -> bytes:
    """The key in `path`, made if it is not there. SnapshotError when it cannot be trusted."""
    try:
        try:
            write_atomically(path, secrets.token_bytes(KEY_BYTES).hex().encode())
        except FileExistsError:
            pass  # somebody's, and it stays: another key would make all snapshots worthless
        except OSError as error:
            raise SnapshotError(f"the snapshots' key cannot be made: {path}: {error.strerror}") from error
        key = bytes.fromhex(read_private(path).decode())
    except PrivateFileError as error:
        raise SnapshotError(f"the snapshots' key cannot be used: {error}", error.hint) from error
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise SnapshotError(
            f"{path} is no key", "restore it from a backup; without it no snapshot can be used any more"
        )
    return key


def write(directory: Path, manifest: Manifest, key: bytes) -> None:
    """Last of all: it says that everything else is there."""
    said = asdict(manifest)
    content = json.dumps({**said, "hmac": _sign(said, key)}, indent=1, sort_keys=True)
    write_atomically(directory / NAME, content.encode())


def read(directory: Path, key: bytes) -> Manifest:
    """SnapshotError when there is none, or it was altered, or is another version's."""
    try:
        with (directory / NAME).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SnapshotError(
            f"there is no complete snapshot in {directory}: {error.strerror}",
            "take another one: what was interrupted while it was saved is not used",
        ) from error
    said: dict[str, Any] = {}
    try:
        said = json.loads(content)
        signature = said.pop("hmac")
        genuine = hmac.compare_digest(str(signature), _sign(said, key))
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        genuine = False
    if not genuine:
        raise SnapshotError(
            f"the manifest of the snapshot {directory.name} was altered, or another daemon's key signed it",
            "use another snapshot; one of another host comes in by: coatcheck sandbox import",
        )
    if said["format"] != FORMAT:
        raise SnapshotError(
            f"the snapshot {directory.name} has format {said['format']}, and this version reads {FORMAT}",
            "restore it with the version that took it",
        )
    return parse(said)


def _sign(said: Mapping[str, Any], key: bytes) -> str:
    canonical = json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
    return hmac.new(key, _PURPOSE + canonical, hashlib.sha256).hexdigest()


def parse(said: Mapping[str, Any]) -> Manifest:
    """Of a manifest as JSON, which somebody vouches for. ValueError, KeyError or TypeError if it is none."""
    origin, around = said["origin"], said["surroundings"]
    return Manifest(
        generation=said["generation"],
        format=said["format"],
        memory=_image(said["memory"]),
        devices=_image(said["devices"]),
        overlay=_image(said["overlay"]),
        origin=Origin(**origin | {"sessions": tuple(origin["sessions"])}),
        surroundings=Surroundings(**around | {"isolation": Isolation(around["isolation"])}),
    )


def _image(said: Mapping[str, Any]) -> Image:
    return Image(said["size"], tuple(said["digests"]))
