"""`coatcheck completion`: what a shell needs to complete commands, options and ids."""

from typing import Annotated

import typer

from coatcheck.cli.errors import CommandError, ExitCode

SHELLS = ("bash", "zsh", "fish")


def completion(shell: Annotated[str, typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      coatcheck completion bash > ~/.local/share/bash-completion/completions/coatcheck
      coatcheck completion zsh > ~/.zfunc/_coatcheck
      coatcheck completion fish > ~/.config/fish/completions/coatcheck.fish
    """
    if shell not in SHELLS:
        raise CommandError(f"there is no completion for {shell!r}", "write bash, zsh or fish", ExitCode.USAGE)
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    typer.echo(get_completion_script(prog_name="coatcheck", complete_var="_COATCHECK_COMPLETE", shell=shell))
