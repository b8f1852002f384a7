"""`coatcheck sandbox pause|resume|sleep|wake|snapshot|snapshots|restore|fork`: beyond one life."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from coatcheck.cli.control import JsonOption, SocketOption, client_for, emit_json
from coatcheck.cli.errors import CommandError, ExitCode
from coatcheck.cli.known_ids import sandbox_ids
from coatcheck.cli.progress import progress
from coatcheck.cli.table import table

SandboxArgument = Annotated[
    str, typer.Argument(metavar="SANDBOX", help="Sandbox id.", autocompletion=sandbox_ids)
]
SnapshotOption = Annotated[
    str | None,
    typer.Option(
        help=("Name of the snapshot. Default: the newest one, or the state in which it fell asleep.")
    ),
]


def snapshot(
    sandbox: SandboxArgument,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of the snapshot. Default: the current time.")
    ] = None,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Save a running sandbox under a name: memory, programs and disk. The sandbox keeps running.

    Example: coatcheck sandbox snapshot sbx_0123456789abcdef before-the-upgrade
    """
    name = name or f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    with progress(f"saving {sandbox}"):
        taken = client_for(socket).take_snapshot(sandbox, name)
    if as_json:
        emit_json(taken)
        return
    typer.echo(f"{sandbox}: snapshot {taken['name']}, {taken['bytes_on_disk'] >> 20} MiB")


def snapshots(
    sandbox: SandboxArgument,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Remove this snapshot. Repeatable.")
    ] = None,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the snapshots of a sandbox, oldest first, or remove some.

    Example: coatcheck sandbox snapshots sbx_0123456789abcdef --remove before-the-upgrade
    """
    client = client_for(socket)
    for name in remove or ():
        client.remove_snapshot(sandbox, name)
    found = client.snapshots(sandbox)
    if as_json:
        emit_json(found)
        return
    table(
        ("snapshot", "taken", "size"),
        ((each["name"], _when(each), f"{each['bytes_on_disk'] >> 20} MiB") for each in found),
        "no snapshots",
    )


def restore(
    sandbox: SandboxArgument,
    snapshot: SnapshotOption = None,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore a sandbox from a snapshot, even if it has died. Its current state is lost.

    Its programs continue where they were, with new sessions; the handles that they hold work for these.

    Example: coatcheck sandbox restore sbx_0123456789abcdef --snapshot before-the-upgrade
    """
    with progress(f"restoring {sandbox}"):
        _say([client_for(socket).restore_sandbox(sandbox, snapshot)], as_json)


def fork(
    sandbox: SandboxArgument,
    count: Annotated[int, typer.Option(min=1, max=16, help="Number of copies.")] = 1,
    snapshot: SnapshotOption = None,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a sandbox with its running programs, from its current state or from a snapshot.

    Each copy gets its own identity before it runs: sessions, generation, entropy, clock, host name.

    Example: coatcheck sandbox fork sbx_0123456789abcdef --count 3
    """
    with progress(f"forking {sandbox}"):
        made = client_for(socket).fork_sandbox(sandbox, count, snapshot)
    _say(made, as_json)


def pause(sandbox: SandboxArgument, socket: SocketOption = None) -> None:
    """Pause a sandbox until it is resumed. Its time limit keeps running.

    Example: coatcheck sandbox pause sbx_0123456789abcdef
    """
    typer.echo(f"{sandbox}: {client_for(socket).pause_sandbox(sandbox)['state']}")


def resume(sandbox: SandboxArgument, socket: SocketOption = None) -> None:
    """Resume a paused sandbox.

    Example: coatcheck sandbox resume sbx_0123456789abcdef
    """
    typer.echo(f"{sandbox}: {client_for(socket).resume_sandbox(sandbox)['state']}")


def sleep(sandbox: SandboxArgument, socket: SocketOption = None, as_json: JsonOption = False) -> None:
    """Save a sandbox to disk and free its memory. It wakes when it is used.

    Example: coatcheck sandbox sleep sbx_0123456789abcdef
    """
    with progress(f"saving {sandbox}"):
        found = client_for(socket).sleep_sandbox(sandbox)
    _say([found], as_json, wanted="sleeping")


def wake(sandbox: SandboxArgument, socket: SocketOption = None, as_json: JsonOption = False) -> None:
    """Wake a sleeping sandbox.

    Example: coatcheck sandbox wake sbx_0123456789abcdef
    """
    with progress(f"waking {sandbox}"):
        _say([client_for(socket).wake_sandbox(sandbox)], as_json)


def _say(found: Sequence[dict[str, Any]], as_json: bool, wanted: str = "running") -> None:
    if as_json:
        emit_json(found)
    else:
        for each in found:
            typer.echo(f"{each['id']}: {each['state']}")
    for each in found:
        if each["state"] != wanted:
            why = each["detail"] or each["ending"] or f"it is {each['state']}"
            raise CommandError(
                f"{each['id']} does not run: {why}" if wanted == "running" else why,
                "See `coatcheck sandbox show` and the daemon's log.",
                ExitCode.FAILED,
            )


def _when(saved: dict[str, Any]) -> str:
    if saved["created_at"] is None:
        return "damaged: it can only be removed"
    return f"{datetime.fromtimestamp(saved['created_at'], UTC):%Y-%m-%d %H:%M:%S} UTC"


COMMANDS = (pause, resume, sleep, wake, snapshot, snapshots, restore, fork)
