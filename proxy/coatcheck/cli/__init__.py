"""The command: parse, call one function, print. One file a group of commands.

May import: kubernetes, local, doctor, daemon, fleet, inspection, durable, images, policy, injectors, secrets,
certificates, telemetry, client, settings, redirect, platform, decision.

Nothing heavy is imported at the top of any file here: `coatcheck --help` must not wait for mitmproxy.
"""

import sys
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

from coatcheck.cli import (
    admission,
    approval,
    audit,
    ca,
    daemon,
    demo,
    diagnosis,
    events,
    fleet,
    image,
    page,
    policy,
    redirect,
    run,
    sandbox,
    session,
    sidecar,
    status,
)
from coatcheck.cli.errors import CommandError, ExitCode, error, report

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

app.command("serve")(daemon.serve)
app.command("dev")(daemon.dev)
app.command("run", context_settings={"allow_interspersed_args": False})(run.run)
app.command("demo", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(demo.demo)
app.command("status")(status.status)
app.command("logs")(status.logs)
app.command("events")(events.events)
app.command("page")(page.page)
app.add_typer(session.app)
app.add_typer(sandbox.app)
app.add_typer(policy.app)
app.add_typer(approval.app)
app.add_typer(ca.app)
app.add_typer(audit.app)
app.add_typer(fleet.app)
app.add_typer(redirect.app)
app.add_typer(image.app)
app.add_typer(admission.app)
app.command("sidecar")(sidecar.sidecar)
app.command("doctor")(diagnosis.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        from coatcheck import __version__

        typer.echo(f"coatcheck {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point: never returns."""
    sys.exit(run_command_line(sys.argv[1:]))


def run_command_line(arguments: list[str]) -> int:
    """One command, with its errors told; the exit code."""
    command = typer.main.get_command(app)
    try:
        code = command.main(arguments, prog_name="coatcheck", standalone_mode=False)
        return code if isinstance(code, int) else ExitCode.DONE
    except TyperException as problem:
        _wrong_use(problem)
        return problem.exit_code
    except (Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except Exception as problem:
        known = report(problem)
        if known is None:
            # A defect: through the log's formatter, which masks what a message may quote.
            from coatcheck.telemetry.log import LogFormat, configure

            configure(LogFormat.HUMAN, "info")
            raise
        return known


def _wrong_use(problem: TyperException) -> None:
    context = getattr(problem, "ctx", None)
    if context is not None and type(problem).__name__ == "NoArgsIsHelpError":
        typer.echo(context.get_help(), err=True)
        return
    path = context.command_path if context is not None else "coatcheck"
    error(problem.format_message(), f"see {path} --help")


__all__ = ["CommandError", "app", "main", "run_command_line"]
