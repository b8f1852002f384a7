"""What several groups of commands share: options, the control client, the policy's place, JSON."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from coatcheck.client.control import ControlClient

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
SocketOption = Annotated[
    Path | None,
    typer.Option(
        help=(
            "Control socket of the daemon. Default: COATCHECK_CONTROL_SOCKET, or the one in"
            " the state directory."
        )
    ),
]
StateDirOption = Annotated[
    Path | None, typer.Option(help="State directory of the daemon. Default: COATCHECK_STATE_DIR.")
]


def control_socket(socket: Path | None) -> Path:
    """Where the daemon is asked: the option, or what its own settings say."""
    if socket is not None:
        return socket
    from coatcheck.settings.explained import load_settings

    return load_settings().control


def configured_policy() -> Path:
    """The policy file or directory that the daemon's settings name."""
    from coatcheck.settings.explained import load_settings

    return load_settings().policy


def client_for(socket: Path | None) -> "ControlClient":
    from coatcheck.client.control import ControlClient

    return ControlClient(socket=control_socket(socket))


def counted(count: int, one: str, many: str = "") -> str:
    """`1 rule`, `2 rules`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def emit_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, default=str))
