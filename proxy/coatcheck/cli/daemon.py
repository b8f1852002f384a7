"""`coatcheck serve` and `coatcheck dev`."""

from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from coatcheck.cli.errors import CommandError, ExitCode, note

LogFormatOption = Annotated[str | None, typer.Option(help="Log format on stderr: human or json.")]
LogLevelOption = Annotated[str | None, typer.Option(help="Log level: debug, info, warning or error.")]


def _settings(wanted: bool) -> None:
    if not wanted:
        return
    from coatcheck.settings.explained import describe

    typer.echo("# coatcheck's settings: environment variables, or without COATCHECK_ and in lower case")
    typer.echo("# in the TOML file that COATCHECK_CONFIG names. The command line is stronger than both.")
    for variable, default, meaning in describe():
        typer.echo(f"{variable} ({default})\n    {meaning}")
    raise typer.Exit


def serve(
    state_dir: Annotated[
        Path | None, typer.Option(help="Directory for keys, sessions, the CA and the audit log (mode 0700).")
    ] = None,
    runtime_dir: Annotated[Path | None, typer.Option(help="Directory for sockets.")] = None,
    policy: Annotated[Path | None, typer.Option(help="Directory of policy files, or a single file.")] = None,
    proxy_host: Annotated[str | None, typer.Option(help="Address of the shared proxy listener.")] = None,
    proxy_port: Annotated[
        int | None,
        typer.Option(
            help=("Port of the shared proxy listener. Default: none; each session has its own listener.")
        ),
    ] = None,
    control_socket: Annotated[Path | None, typer.Option(help="Unix socket of the control API.")] = None,
    control_port: Annotated[
        int | None, typer.Option(help="TCP port of the control API. Default: Unix socket only.")
    ] = None,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = None,
    settings: Annotated[
        bool,
        typer.Option("--settings", callback=_settings, is_eager=True, help="List all settings and exit."),
    ] = False,
) -> None:
    """Run the daemon. SIGTERM drains it, a second SIGTERM stops it at once, SIGHUP reloads the policies.

    Settings come from COATCHECK_… variables and the TOML file that COATCHECK_CONFIG names.

    Example: COATCHECK_CONFIG=/etc/coatcheck/config.toml coatcheck serve
    """
    import gc

    gc.disable()  # until the daemon stands: a sixth of its start would be searches of what was just imported
    from coatcheck.platform.state_directory import StateDirectory
    from coatcheck.settings.daemon import how_to_move
    from coatcheck.settings.explained import load_settings
    from coatcheck.telemetry.log_file import LOG_FILE

    loaded = load_settings(
        state_dir=state_dir,
        runtime_dir=runtime_dir,
        policy=policy,
        proxy_host=proxy_host,
        proxy_port=proxy_port,
        control_socket=control_socket,
        control_port=control_port,
        log_format=log_format,
        log_level=log_level,
    )
    StateDirectory.open(loaded.state_dir)
    configure_log(loaded.log_format, loaded.log_level, loaded.state_dir / LOG_FILE)
    if (command := how_to_move(loaded)) is not None:
        note(
            "note",
            f"the state directory is at its earlier default, {loaded.state_dir}, and is used there; to move"
            f" it to where every directory finds it, stop this daemon and type: {command}",
        )
    from coatcheck import daemon
    from coatcheck.platform.process_memory import hide_memory

    hide_memory()
    until_it_ends(daemon.run(loaded, announce=True))


def dev(
    policy: Annotated[
        Path | None, typer.Option(help="Policy file, directory or bundle. Default: the sample policy.")
    ] = None,
    proxy_port: Annotated[int | None, typer.Option(min=0, help="Also open a shared proxy listener.")] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="State directory to use and keep. Default: a temporary one.")
    ] = None,
    log_level: Annotated[str, typer.Option(help="Log level: debug, info, warning or error.")] = "warning",
) -> None:
    """Run a daemon with OpenBao in memory and a new CA.

    It prints commands to paste elsewhere. Needs OpenBao: pip install 'coatcheck[embedded]'. Ctrl-C ends
    everything. The settings of serve apply: with COATCHECK_POLICY_TRUST_ROOT, --policy is a signed bundle.

    Example: coatcheck dev
    """
    configure_log("human", log_level)
    from coatcheck.local.dev import develop
    from coatcheck.local.in_process import private_directory
    from coatcheck.platform.process_memory import hide_memory
    from coatcheck.policy.shipped import POLICY

    hide_memory()
    with private_directory(state_dir) as directory:
        until_it_ends(develop(directory, policy or POLICY, proxy_port, typer.echo))


def until_it_ends(work: Coroutine[Any, Any, None]) -> None:
    import asyncio
    import errno

    try:
        asyncio.run(work)
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE:
            raise CommandError(
                f"a listener cannot be opened: {_without_number(problem)}",
                "another process listens there: find it with ss -ltnp, or choose another port or path",
            ) from None
        raise
    except ValueError as problem:  # settings that are wrong together, such as a login without its file
        if hasattr(problem, "hint"):
            raise
        raise CommandError(str(problem), "see coatcheck serve --settings", ExitCode.USAGE) from problem
    except Exception as problem:
        if type(problem).__name__ in (
            "AuditUnavailable",
            "EmbeddedVaultError",
        ):  # they say what to do themselves
            message, _, hint = str(problem).partition("; ")
            raise CommandError(message, hint) from None
        raise


def _without_number(problem: OSError) -> str:
    return str(problem).partition("] ")[2] or str(problem)


def configure_log(style: str, level: str, file: Path | None = None) -> None:
    """The daemon's log on standard error, and in `file`."""
    import logging

    from coatcheck.telemetry.log import LogFormat, configure

    if level not in ("debug", "info", "warning", "error"):
        raise CommandError(
            f"there is no log level {level!r}", "write debug, info, warning or error", ExitCode.USAGE
        )
    configure(LogFormat(style), level, file=file)
    # It warns that nobody chooses layers: our connection handler does, in that addon's place.
    logging.getLogger("mitmproxy.addons.proxyserver").setLevel(logging.ERROR)
