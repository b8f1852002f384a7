"""`coatcheck run`: a command with handles in place of secrets."""

import asyncio
import getpass
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coatcheck.cli.control import SocketOption
from coatcheck.cli.daemon import configure_log
from coatcheck.cli.errors import CommandError, ExitCode, note, report

if TYPE_CHECKING:
    from coatcheck.running import Wanted

FAILED = 125
"""We failed, not the command: as docker(1), env(1) and timeout(1) say it."""
MOST_SECRET_BYTES = 65_536
"""As much as a secret's file may hold (`stores.file`)."""


def run(
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, best after --.")],
    policy: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="A policy of the daemon, or a file of your own.")
    ] = None,
    credential: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only these credentials; repeat it.")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CREDENTIAL=FILE", help="A secret from a file, or - to type or pipe it in; repeat it."
        ),
    ] = None,
    tenant: Annotated[str, typer.Option(help="For attribution and limits.")] = "local",
    subject: Annotated[str | None, typer.Option(help="Who is running it; default: your login.")] = None,
    lease: Annotated[
        float | None, typer.Option(min=1, help="Seconds; renewed while the command lives.")
    ] = None,
    keep_env: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Pass this variable on although it looks secret.")
    ] = None,
    no_proxy: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="Reached without the proxy, such as localhost.")
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(help="Of a daemon of its own; default: removed afterwards, audit log and all."),
    ] = None,
    socket: SocketOption = None,
) -> None:
    """Run a command that holds handles instead of secrets, in a session that ends with it.

    Its environment gets proxy, trust and handles; what looks like a secret is not passed on. Where no
    daemon answers, or with a policy file or --secret, a daemon of its own runs as long as it does:
    secrets then come from --secret, or from the Vault or directory in COATCHECK_VAULT_… and
    COATCHECK_SECRETS_DIR. The command is not isolated: it runs as you and can read your files.

    \b
    Examples:
      coatcheck run -- python agent.py
      coatcheck run --secret openai=- -- python agent.py
      coatcheck run --policy mine.yaml --credential openai -- npm start
    """
    from coatcheck.process_memory import hide_memory
    from coatcheck.running import Wanted, policy_file

    hide_memory()  # the command is of our user, and we began with what it must not have
    own = policy_file(policy)
    wanted = Wanted(
        command=tuple(command),
        policy=own.stem if own is not None else policy or "default",
        credentials=tuple(credential) if credential else None,
        tenant=tenant,
        subject=subject or getpass.getuser(),
        lease_seconds=lease,
        keep=frozenset(keep_env or ()),
        no_proxy=tuple(no_proxy or ()),
    )
    try:
        secrets = dict(_secret(text) for text in secret or ())
        if own is None and not secrets and (code := _with_daemon(wanted, socket)) is not None:
            raise typer.Exit(code)
        if socket is not None and own is None and not secrets:
            raise CommandError(f"no daemon answers at {socket}", "start it: coatcheck serve")
        if policy is not None and own is None:
            raise CommandError(
                f"there is no daemon that has the policy {policy!r}",
                "start one, or give a file: --policy mine.yaml",
            )
        raise typer.Exit(asyncio.run(_with_own_daemon(wanted, own, secrets, state_dir)))
    except typer.Exit:
        raise
    except Exception as problem:
        # 1 to 3 are the command's own codes here: what failed before it or beside it must look different.
        if getattr(problem, "code", None) is ExitCode.USAGE or report(problem) is None:
            raise
        raise typer.Exit(FAILED) from None


def _with_daemon(wanted: "Wanted", socket: Path | None) -> int | None:
    """None when no daemon answers."""
    from coatcheck.cli.control import control_socket
    from coatcheck.control_client import ControlClient
    from coatcheck.doctor.control import daemon_pid
    from coatcheck.running import run_in_session
    from coatcheck.settings import process_environment

    path = control_socket(socket)
    if daemon_pid(path) is None:
        return None
    return asyncio.run(run_in_session(ControlClient(socket=path), wanted, process_environment(), note))


async def _with_own_daemon(
    wanted: "Wanted", policy: Path | None, secrets: dict[str, str], state_dir: Path | None
) -> int:
    from dataclasses import replace

    from coatcheck.control_client import ControlClient
    from coatcheck.own_daemon import own_daemon, private_directory, with_given
    from coatcheck.policyfile.checking import load_file
    from coatcheck.running import run_in_session
    from coatcheck.samples import POLICY
    from coatcheck.settings import process_environment
    from coatcheck.settings_problem import load_settings
    from coatcheck.stores.configured import make_stores

    configure_log("human", "error")  # what a daemon warns of is not about this command
    file = policy or POLICY
    loaded = load_file(file)
    with private_directory(state_dir) as directory:
        state = directory if state_dir is not None else directory / "state"
        settings = load_settings(
            state_dir=state,
            runtime_dir=state / "run",
            control_socket=state / "run/c.sock",
            policy=file,
            drain_seconds=0.0,
        )
        stores = with_given(make_stores(settings), {loaded.name: loaded}, secrets)
        if not stores:
            raise CommandError(
                "no daemon answers, and there is nowhere to take secrets from",
                "start one (coatcheck serve, coatcheck dev), or give --secret openai=-, "
                "COATCHECK_VAULT_URL or COATCHECK_SECRETS_DIR",
            )
        umask = os.umask(0o077)  # the daemon sets this for itself, the command gets the user's own
        variables = frozenset(each.env for each in loaded.credentials.values() if each.env)
        here = replace(wanted, named=variables, umask=umask)
        async with own_daemon(settings, stores):
            return await run_in_session(
                ControlClient(socket=settings.control), here, process_environment(), note
            )


def _secret(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    if not equals or not name or not source:
        raise CommandError(
            f"--secret {name}: it names no file",
            "write --secret openai=FILE, or openai=- to type it in",
            ExitCode.USAGE,
        )
    if source == "-":
        value = (
            getpass.getpass(f"secret for {name}: ")
            if sys.stdin.isatty()
            else sys.stdin.read(MOST_SECRET_BYTES)
        )
    else:
        with open(source) as file:
            value = file.read(MOST_SECRET_BYTES)
    value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        raise CommandError(f"the secret for {name} is empty", "type or pipe it in, or name its file")
    return name, value
