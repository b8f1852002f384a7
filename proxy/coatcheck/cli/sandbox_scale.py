"""`coatcheck sandbox scale`: another size for a sandbox that runs."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from coatcheck.cli.control import JsonOption, SocketOption, client_for, emit_json
from coatcheck.cli.errors import CommandError, ExitCode


def scale(
    sandbox: Annotated[str, typer.Argument(metavar="SANDBOX", help="Sandbox id.")],
    memory: Annotated[int | None, typer.Option(min=1, help="Memory in MiB.")] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="Number of CPUs.")] = None,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a running sandbox more or less memory or CPUs, within the range it was created with.

    An increase takes effect at once; a decrease as fast as the guest's kernel gives memory back.

    Example: coatcheck sandbox scale sbx_0123456789abcdef --memory 4096 --cpus 2
    """
    if memory is None and cpus is None:
        raise CommandError("there is nothing to change", "give --memory, --cpus or both", ExitCode.USAGE)
    scaled = client_for(socket).scale_sandbox(sandbox, memory, cpus)
    if as_json:
        emit_json(scaled)
        return
    typer.echo(f"{sandbox}: {scaled['memory_mib']} MiB of memory, {scaled['cpus']} CPUs")


def described(elastic: Mapping[str, Any]) -> str:
    """A sandbox's range, in one line."""
    words = [
        f"{elastic['min_memory_mib']} to {elastic['max_memory_mib']} MiB",
        f"{elastic['min_cpus']} to {elastic['max_cpus']} CPUs",
    ]
    if elastic["autoscale"] is not None:
        words.append("automatic")
    if elastic["scaling"] == "outside":
        words.append("not from inside")
    return ", ".join(words)
