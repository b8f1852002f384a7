"""`coatcheck session …`: sessions of a running daemon."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from coatcheck.cli.control import JsonOption, SocketOption, client_for, emit_json
from coatcheck.cli.errors import CommandError, ExitCode
from coatcheck.cli.known_ids import session_ids
from coatcheck.cli.table import table

app = typer.Typer(
    name="session",
    no_args_is_help=True,
    help="Sessions of a running daemon.\n\nExample: coatcheck session list --json",
)

SessionArgument = Annotated[
    str, typer.Argument(metavar="SESSION", help="Session id.", autocompletion=session_ids)
]


@app.command()
def create(
    policy: Annotated[str, typer.Option(help="Name of a policy of the daemon.")] = "default",
    credential: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Grant only this credential. Repeatable. Default: all of the policy's."
        ),
    ] = None,
    tenant: Annotated[str, typer.Option(help="Tenant, for attribution and limits.")] = "local",
    subject: Annotated[
        str | None, typer.Option(help="Subject, for attribution. Default: your login name.")
    ] = None,
    lease: Annotated[
        float | None,
        typer.Option(
            min=1,
            help=(
                "Lease in seconds: how long the session lives without renewal. Default: the daemon's setting."
            ),
        ),
    ] = None,
    max_age: Annotated[float | None, typer.Option(min=1, help="Maximum age in seconds.")] = None,
    isolation: Annotated[
        str, typer.Option(help="Isolation of the sandbox: hardware, emulated, gvisor, namespace or none.")
    ] = "none",
    listen: Annotated[
        str,
        typer.Option(help="Listener of the session: tcp (loopback), unix, sandbox (three sockets) or none."),
    ] = "tcp",
    redirected: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help=(
                "Use the transparent listener: source address of the sandbox whose connections"
                " are redirected."
            ),
        ),
    ] = None,
    style: Annotated[
        str | None, typer.Option(help="Print only the sandbox's environment, as sh, fish, json or dotenv.")
    ] = None,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Open a session. Its handles are shown only once. It ends when its lease is not renewed.

    Example: eval "$(coatcheck session create --credential openai --lease 600 --style sh)"
    """
    import getpass

    if style is not None and style not in ("sh", "fish", "json", "dotenv"):
        raise CommandError(f"there is no style {style!r}", "write sh, fish, json or dotenv", ExitCode.USAGE)
    opened = client_for(socket).open_session(
        tenant=tenant,
        subject=subject or getpass.getuser(),
        policy=policy,
        credentials=credential or None,
        isolation=isolation,
        lease_seconds=lease,
        max_age=max_age,
        origin={"class": "address", "value": f"transparent|{redirected}"} if redirected else None,
        listen=None if redirected else listen,
    )
    if as_json:
        emit_json(opened)
    elif style is not None:
        typer.echo(_environment(opened["environment"], style), nl=False)
    else:
        typer.echo(f"session   {opened['session']['id']}")
        typer.echo(f"lease     until {_time(opened['lease_expires_at'])}")
        typer.echo(f"proxy     {opened['proxy']['url'] or 'no listener of its own'}")
        typer.echo(f"trust     {opened['proxy']['ca_bundle']}")
        for name, handle in sorted(opened["handles"].items()):
            typer.echo(f"handle    {name} {handle['env'] or '-'} {handle['value']}")


@app.command()
def renew(
    session: SessionArgument,
    lease: Annotated[
        float | None, typer.Option(min=1, help="Lease in seconds from now. Default: as before.")
    ] = None,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Renew a session's lease.

    Example: coatcheck session renew ses_0123456789abcdef01234567
    """
    answer = client_for(socket).renew(session, lease_seconds=lease)
    emit_json(answer) if as_json else typer.echo(f"{session}: until {_time(answer['lease_expires_at'])}")


@app.command()
def rebind(session: SessionArgument, socket: SocketOption = None, as_json: JsonOption = False) -> None:
    """Refuse all handles of a session and issue new ones, because its sandbox was restored or handed on.

    Requests that use an old handle are cut off. A session of one of Coatcheck's own sandboxes cannot be
    rebound: restore or fork the sandbox instead.

    Example: coatcheck session rebind ses_0123456789abcdef01234567
    """
    rebound = client_for(socket).rebind(session)
    if as_json:
        emit_json(rebound)
        return
    typer.echo(f"{session}: generation {rebound['session']['generation']}")
    for name, handle in sorted(rebound["handles"].items()):
        typer.echo(f"handle    {name} {handle['env'] or '-'} {handle['value']}")


@app.command()
def revoke(
    session: SessionArgument,
    why: Annotated[
        str | None, typer.Option(help="Reason for the audit log. Do not put a secret here.")
    ] = None,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a session. When the command returns, its handles no longer work and its connections are cut.

    Example: coatcheck session revoke ses_0123456789abcdef01234567 --why 'laptop lost'
    """
    answer = client_for(socket).revoke(session, why=why)
    emit_json(answer) if as_json else typer.echo(f"{session}: revoked")


@app.command("revoke-many")
def revoke_many(
    tenant: Annotated[str | None, typer.Option(help="Only sessions or records of this tenant.")] = None,
    subject: Annotated[str | None, typer.Option(help="Only sessions of this subject.")] = None,
    policy: Annotated[str | None, typer.Option(help="Only sessions of this policy.")] = None,
    credential: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Take away only this credential; the sessions continue without it."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--everything", help="Revoke every session.")] = False,
    why: Annotated[
        str | None, typer.Option(help="Reason for the audit log. Do not put a secret here.")
    ] = None,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke many sessions, or one credential of them, in one step, for example after a leak.

    Example: coatcheck session revoke-many --policy default --credential openai --why 'key in a public log'
    """
    revoked = client_for(socket).revoke_many(
        tenant=tenant,
        subject=subject,
        policy=policy,
        credential=credential,
        everything=everything,
        why=why,
    )
    what = f"lost {credential}" if credential is not None else "revoked"
    emit_json({"sessions": revoked}) if as_json else typer.echo(f"{revoked} sessions: {what}")


@app.command("list")
def list_sessions(
    tenant: Annotated[str | None, typer.Option(help="Only sessions or records of this tenant.")] = None,
    status: Annotated[
        str | None,
        typer.Option(
            help=("Status: live, revoked, ended, lapsed or expired. Closed sessions are listed for a while.")
        ),
    ] = None,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """List sessions. `ls` is the same.

    Example: coatcheck session list --status live --json
    """
    sessions = client_for(socket).list(tenant=tenant, status=status)
    if as_json:
        emit_json(sessions)
        return
    table(
        ("session", "status", "tenant/subject", "policy", "lease until"),
        (
            (
                each["id"],
                each["status"],
                f"{each['tenant']}/{each['subject']}",
                each["policy"],
                _time(each["lease_expires_at"]),
            )
            for each in sessions
        ),
        "no sessions",
    )


app.command("ls", hidden=True)(list_sessions)


@app.command()
def show(session: SessionArgument, socket: SocketOption = None, as_json: JsonOption = False) -> None:
    """Show one session: its lifetime, its origin and its handles (never their values).

    Example: coatcheck session show ses_0123456789abcdef01234567
    """
    shown = client_for(socket).show(session)
    if as_json:
        emit_json(shown)
        return
    found = shown["session"]
    for name in ("id", "status", "tenant", "subject", "policy", "isolation", "generation", "opened_by"):
        typer.echo(f"{name:<10} {found[name]}")
    typer.echo(f"{'origin':<10} {found['origin']['class']} {found['origin']['value']}")
    typer.echo(f"{'opened':<10} {_time(found['opened_at'])}")
    typer.echo(f"{'lease':<10} until {_time(found['lease_expires_at'])}")
    typer.echo(f"{'expires':<10} {_time(found['expires_at'])}")
    for handle in shown["handles"]:
        revoked = " revoked" if handle["revoked"] else ""
        typer.echo(f"{'handle':<10} {handle['jti']} {handle['credential']}{revoked}")


def _environment(variables: dict[str, str], style: str) -> str:
    from coatcheck.certificates.client_environment import Style, Variable, render

    return render([Variable(name, value, "") for name, value in variables.items()], Style(style)).replace(
        "# \n", ""
    )


def _time(at: float | None) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC" if at is not None else "-"
