"""All commands by name, and how one of them runs: parsed, called, its errors told."""

from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Final

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]
from typer.exceptions import Abort, TyperException

from coatcheck.cli.errors import ExitCode, error, report

COMMANDS: Final = {
    "serve": "daemon.serve",
    "dev": "daemon.dev",
    "run": "run.run",
    "demo": "demo.demo",
    "status": "status.status",
    "logs": "status.logs",
    "events": "events.events",
    "page": "page.page",
    "sidecar": "sidecar.sidecar",
    "doctor": "diagnosis.doctor",
    "completion": "completion.completion",
    "session": "session.app",
    "sandbox": "sandbox.app",
    "policy": "policy.app",
    "approval": "approval.app",
    "ca": "ca.app",
    "audit": "audit.app",
    "fleet": "fleet.app",
    "redirect": "redirect.app",
    "image": "image.app",
    "admission": "admission.app",
}
"""Name -> its function, or the group of its commands, as `module.name` below this folder."""

_CONTEXT: Final = {
    "run": {"allow_interspersed_args": False},
    "demo": {"allow_extra_args": True, "ignore_unknown_options": True},
}
"""What follows these commands' names is for other programs."""


def command_line(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command with these of its commands. Each costs the import of its module."""
    app = typer.Typer(
        name="coatcheck",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,  # they would print local variables
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        help="""A credential-injecting egress proxy for AI-agent sandboxes: the agent never holds a secret.

Example: coatcheck run -- python agent.py

\b
Exit codes:
  0    success
  1    the check failed: bad policy, broken log, refused request, mistakes found
  2    wrong options, arguments or settings
  3    it could not be done: a daemon, file or store is missing or refuses
  130  interrupted
`coatcheck run` and `coatcheck sandbox run` end with their command's code, 128+n after signal n, 125 when
coatcheck itself failed, 126 or 127 when the command could not be started or found.""",
    )
    app.callback()(_options)
    for name in names:
        module, _, part = COMMANDS[name].partition(".")
        found = getattr(import_module(f"coatcheck.cli.{module}"), part)
        if isinstance(found, typer.Typer):
            app.add_typer(found)
        else:
            app.command(name, context_settings=_CONTEXT.get(name))(found)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from coatcheck import __version__

        typer.echo(f"coatcheck {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def run(arguments: list[str]) -> int:
    """One command, with its errors told; the exit code."""
    completion_init()
    first = arguments[0] if arguments else ""
    command = typer.main.get_command(command_line([first] if first in COMMANDS else COMMANDS))
    try:
        code = command.main(arguments, prog_name="coatcheck", standalone_mode=False)
        return code if isinstance(code, int) else ExitCode.DONE
    except TyperException as problem:
        _wrong_use(problem)
        return problem.exit_code
    except (Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except Exception as problem:
        if isinstance(problem, UnicodeEncodeError) and not all(map(_is_text, arguments)):
            error("an argument is not UTF-8 text", "names of files may be; ids, names and URLs may not")
            return ExitCode.USAGE
        known = report(problem)
        if known is None:
            # A defect: through the log's formatter, which masks what a message may quote.
            from coatcheck.telemetry.log import LogFormat, configure

            configure(LogFormat.HUMAN, "info")
            raise
        return known


def _is_text(argument: str) -> bool:
    """Whether it can be written as UTF-8: other bytes of a command line are surrogates here (PEP 383)."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _wrong_use(problem: TyperException) -> None:
    context = getattr(problem, "ctx", None)
    if context is not None and type(problem).__name__ == "NoArgsIsHelpError":
        typer.echo(context.get_help(), err=True)
        return
    path = context.command_path if context is not None else "coatcheck"
    error(problem.format_message(), f"see {path} --help")
