"""`coatcheck sandbox export|import`: a snapshot on its way to another host, encrypted under a passphrase.

On the daemon's own host, as its user, from its state directory: what a sandbox knew never passes an API.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from coatcheck.cli.control import StateDirOption
from coatcheck.cli.errors import CommandError, ExitCode
from coatcheck.cli.known_ids import sandbox_ids
from coatcheck.cli.progress import progress

if TYPE_CHECKING:
    from coatcheck.durable.snapshots.store import Store

_ID = re.compile(r"sbx_[0-9a-f]{16}")
SandboxArgument = Annotated[
    str, typer.Argument(metavar="SANDBOX", help="Sandbox id.", autocompletion=sandbox_ids)
]
SnapshotArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the snapshot.")]
PassphraseOption = Annotated[
    Path,
    typer.Option(
        metavar="FILE", help="File whose first line is the passphrase (at least 16 characters); mode 0600."
    ),
]


def export(
    sandbox: SandboxArgument,
    name: SnapshotArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to create; `-` writes to standard output.")
    ],
    passphrase: PassphraseOption,
    state_dir: StateDirOption = None,
) -> None:
    """Export a snapshot to an encrypted file for another host, which refuses it if a byte was changed.

    The file holds everything that the sandbox's programs knew. It holds no secret: none was in the sandbox.

    Example: coatcheck sandbox export sbx_0123456789abcdef before-the-upgrade up.ccs --passphrase ./passphrase
    """
    from coatcheck.durable.snapshots import archive
    from coatcheck.durable.snapshots.directory import Snapshot

    kept, key_file, _ = _kept(sandbox, state_dir)
    words = _passphrase(passphrase)
    with progress(f"exporting {name}"):
        snapshot = Snapshot.open(kept.find(name), key_file)
        with _target(file) as target:
            archive.export(snapshot, target, words)


def import_(
    sandbox: SandboxArgument,
    name: SnapshotArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File written by `export`; `-` reads standard input.")
    ],
    passphrase: PassphraseOption,
    state_dir: StateDirOption = None,
) -> None:
    """Import a snapshot that another host exported, as a snapshot of a sandbox here. Then use `restore`.

    The sandbox must have the size, the image and the QEMU version of the saved one. Handles that its
    programs hold belong to the other host and do not work here; commands started here get new ones.

    Example: coatcheck sandbox import sbx_fedcba9876543210 from-the-laptop up.ccs --passphrase ./passphrase
    """
    from coatcheck.durable.durability import PERIODIC
    from coatcheck.durable.snapshots import archive
    from coatcheck.durable.snapshots.manifest import open_key

    if name.startswith(PERIODIC):
        raise CommandError(
            f"names that begin with {PERIODIC} are of periodic snapshots, which are replaced",
            "use another name",
            ExitCode.USAGE,
        )
    kept, key_file, reserve_mib = _kept(sandbox, state_dir)
    words = _passphrase(passphrase)
    key = open_key(key_file)
    opened = nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb")
    with progress(f"importing {name}"), opened as source:
        taken = archive.take(source, kept.place(name, key), sandbox, words, key, reserve_mib)
    about = taken.surroundings
    typer.echo(
        f"{sandbox}: snapshot {name}, {about.memory_mib} MiB of memory, {about.cpus} CPUs,"
        f" {about.disk_mib} MiB of disk, isolation {about.isolation}; saved by QEMU {about.qemu_version}"
    )


COMMANDS = {"export": export, "import": import_}


def _kept(sandbox: str, state_dir: Path | None) -> "tuple[Store, Path, int]":
    """The sandbox's snapshots, the file of the key that signs them, and MiB that stay free beside them."""
    from coatcheck.durable.snapshots.store import Store
    from coatcheck.durable.store import KEY, SNAPSHOTS
    from coatcheck.settings.explained import load_settings

    if not _ID.fullmatch(sandbox):  # it becomes a path
        raise CommandError(
            f"{sandbox[:80]!r} is not a sandbox id", "coatcheck sandbox list shows them", ExitCode.USAGE
        )
    settings = load_settings(state_dir=state_dir)
    state = settings.state_dir
    place = state / "sandboxes" / sandbox.removeprefix("sbx_") / SNAPSHOTS
    if not place.is_dir():
        raise CommandError(
            f"nothing is kept of a sandbox {sandbox} in {state}",
            "coatcheck sandbox list shows the sandboxes; run this on the daemon's host, as its user",
        )
    return Store(place, settings.max_snapshots), state / KEY, settings.snapshot_reserve


@contextmanager
def _target(file: Path) -> Iterator[BinaryIO]:
    """Written whole, or not there."""
    if str(file) == "-":
        yield sys.stdout.buffer
        return
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise CommandError(f"{file} already exists", "remove it, or name another file") from None
    try:
        with os.fdopen(descriptor, "wb") as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def _passphrase(file: Path) -> bytes:
    from coatcheck.platform.private_files import read_private

    lines = read_private(file).splitlines()
    if not lines:
        raise CommandError(f"{file} is empty", "make one: openssl rand -base64 24", ExitCode.USAGE)
    return lines[0]
