"""Options of `coatcheck sandbox run` that say what becomes of a sandbox, and how that is shown."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from coatcheck.cli.errors import CommandError, ExitCode
from coatcheck.durable.durability import Lifecycle
from coatcheck.durable.lifecycle import Recover

LifecycleOption = Annotated[
    Lifecycle | None,
    typer.Option(help="Lifecycle; sets the defaults for sleeping, snapshots and recovery."),
]
RecoverOption = Annotated[
    Recover | None,
    typer.Option(help="After an unexpected end: leave the sandbox, or restore it automatically."),
]
EveryOption = Annotated[
    float | None, typer.Option(min=0, help="Seconds between automatic snapshots; 0 takes none.")
]
RotateOption = Annotated[
    bool | None,
    typer.Option(
        "--rotate/--no-rotate", help="Number of automatic snapshots to keep; a new one replaces the oldest."
    ),
]


def check_keep(lifecycle: Lifecycle | None, *, keep: bool) -> None:
    """CommandError: a sandbox that ends with its command has no life beyond it."""
    if lifecycle not in (None, Lifecycle.EPHEMERAL) and not keep:
        raise CommandError(
            f"a {lifecycle} sandbox does not end with its command", "add --keep", ExitCode.USAGE
        )


def described(keeping: Mapping[str, Any]) -> str:
    """In words, as the control API shows it."""
    said = [keeping["lifecycle"] or "as asked"]
    if keeping["idle"] == "sleep":
        said.append("sleeps when idle")
    if keeping["snapshot_every"]:
        rotates = ", the oldest of these replaced" if keeping["rotate_snapshots"] else ""
        said.append(f"a snapshot every {keeping['snapshot_every']:g} s{rotates}")
    if keeping["recover"] == Recover.LAST_SNAPSHOT:
        said.append("brought back when it dies")
    return "; ".join(said)
