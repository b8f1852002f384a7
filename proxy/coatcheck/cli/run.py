"""`coatcheck run`: a command with handles in place of secrets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coatcheck.cli.control import SocketOption
from coatcheck.cli.errors import CommandError, ExitCode, note, report
from coatcheck.cli.own import own_daemon_for
from coatcheck.cli.own import secret as read_secret

if TYPE_CHECKING:
    from coatcheck.local.run import Wanted

FAILED = 125
"""We failed, not the command: as docker(1), env(1) and timeout(1) say it."""


def run(
    command: Annotated[list[str], typer.Argument(help="Command and arguments, preferably after --.")],
    policy: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Name of a policy of the daemon, or a policy file."),
    ] = None,
    credential: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Grant only this credential. Repeatable. Default: all of the policy's."
        ),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CREDENTIAL=FILE",
            help="CREDENTIAL=FILE, or CREDENTIAL=- to type or pipe the secret in. Repeatable.",
        ),
    ] = None,
    tenant: Annotated[str, typer.Option(help="Tenant, for attribution and limits.")] = "local",
    subject: Annotated[
        str | None, typer.Option(help="Subject, for attribution. Default: your login name.")
    ] = None,
    lease: Annotated[
        float | None, typer.Option(min=1, help="Lease in seconds; renewed while the command runs.")
    ] = None,
    keep_env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Pass this environment variable on although it looks like a secret. Repeatable.",
        ),
    ] = None,
    no_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST", help="Host that is reached without the proxy, such as localhost. Repeatable."
        ),
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            help=(
                "State directory if the command starts its own daemon. Default: a temporary one, of which"
                " only the audit log is kept."
            )
        ),
    ] = None,
    socket: SocketOption = None,
) -> None:
    """Run a command with handles instead of secrets.

    Its session ends with it. Its environment gets proxy, trust and handles; variables that look like secrets
    are removed. If no daemon answers, or with a policy file or --secret, the command gets its own daemon.
    Its secrets come from --secret, from the Vault of COATCHECK_VAULT_…, or from COATCHECK_SECRETS_DIR. The
    command is not isolated: it runs as you and can read your files.

    Before the command starts, its credentials are checked; with one that was asked for and cannot be used, or
    a store that does not answer, it does not start. Afterwards you are told what was refused.

    \b
    Examples:
      coatcheck run -- python agent.py
      coatcheck run --secret openai=- -- python agent.py
      coatcheck run --policy mine.yaml --credential openai -- npm start
    """
    import asyncio
    import getpass

    from coatcheck.local.run import Wanted, policy_file
    from coatcheck.platform.process_memory import hide_memory

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
        secrets = dict(read_secret(text) for text in secret or ())
        if own is None and not secrets and (code := _with_daemon(wanted, socket)) is not None:
            raise typer.Exit(code)
        if socket is not None and own is None and not secrets:
            raise CommandError(f"no daemon answers at {socket}", "start it: coatcheck serve")
        if policy is not None and own is None:
            raise CommandError(
                f"no daemon has the policy {policy!r}",
                "start one, or give a file: --policy mine.yaml",
            )
        raise typer.Exit(asyncio.run(_with_own_daemon(wanted, own, secrets, state_dir)))
    except typer.Exit:
        raise
    except Exception as problem:
        # 1 to 3 are the command's own codes here: what failed before it or beside it must look different.
        if getattr(problem, "exit_code", None) is ExitCode.USAGE or report(problem) is None:
            raise
        raise typer.Exit(FAILED) from None


def _with_daemon(wanted: "Wanted", socket: Path | None) -> int | None:
    """None when no daemon answers."""
    import asyncio

    from coatcheck.cli.control import control_socket
    from coatcheck.client.control import ControlClient
    from coatcheck.doctor.control import daemon_pid
    from coatcheck.local.run import run_in_session
    from coatcheck.settings.daemon import process_environment

    path = control_socket(socket)
    if (pid := daemon_pid(path)) is None:
        if socket is None:
            note("note", f"no daemon answers at {path}: this command gets its own, which ends with it")
        return None
    note("note", f"the daemon that decides has pid {pid} and listens at {path}")
    return asyncio.run(run_in_session(ControlClient(socket=path), wanted, process_environment(), note))


async def _with_own_daemon(
    wanted: "Wanted", policy: Path | None, secrets: dict[str, str], state_dir: Path | None
) -> int:
    from dataclasses import replace

    from coatcheck.client.control import ControlClient
    from coatcheck.local.run import run_in_session
    from coatcheck.settings.daemon import process_environment

    async with own_daemon_for(policy, secrets, state_dir, needs_secrets=True) as own:
        variables = frozenset(each.env for each in own.policy.credentials.values() if each.env)
        here = replace(wanted, named=variables, umask=own.umask)
        return await run_in_session(ControlClient(socket=own.control), here, process_environment(), note)
