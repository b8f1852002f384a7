"""`coatcheck sandbox …`: computers whose only way out is Coatcheck."""

from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from coatcheck.cli import inspection, sandbox_archive, sandbox_keeping, sandbox_listing, sandbox_scale
from coatcheck.cli.control import SocketOption, client_for, control_socket
from coatcheck.cli.errors import CommandError, ExitCode, report
from coatcheck.cli.known_ids import sandbox_ids
from coatcheck.cli.sandbox_lifecycle import (
    EveryOption,
    LifecycleOption,
    RecoverOption,
    RotateOption,
    check_keep,
)

app = typer.Typer(
    name="sandbox",
    no_args_is_help=True,
    help="Sandboxes without secrets whose only network is the proxy.\n\n"
    "Example: coatcheck sandbox run -- python3 -c 'print(6 * 7)'",
)

SandboxArgument = Annotated[
    str, typer.Argument(metavar="SANDBOX", help="Sandbox id.", autocompletion=sandbox_ids)
]
IdentityOption = Annotated[
    str | None, typer.Option(help="Identity to run as: agent or tool. Default: the sandbox's first identity.")
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME[=VALUE]",
        help="Environment variable NAME=VALUE, or NAME to pass on yours. Repeatable.",
    ),
]
NO_INTERSPERSED = {"allow_interspersed_args": False}


@app.command(context_settings=NO_INTERSPERSED)
def run(
    command: Annotated[list[str], typer.Argument(help="Command and arguments, preferably after --.")],
    policy: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Name of a policy of the daemon, or a policy file."),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CREDENTIAL=FILE",
            help="CREDENTIAL=FILE, or CREDENTIAL=- to type the secret in. Repeatable.",
        ),
    ] = None,
    tenant: Annotated[str, typer.Option(help="Tenant, for attribution and limits.")] = "local",
    subject: Annotated[
        str | None, typer.Option(help="Subject, for attribution. Default: your login name.")
    ] = None,
    memory: Annotated[int | None, typer.Option(min=1, help="Memory at the start, in MiB.")] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="CPUs at the start.")] = None,
    max_memory: Annotated[int | None, typer.Option(min=1, help="Memory that it may grow to, in MiB.")] = None,
    max_cpus: Annotated[int | None, typer.Option(min=1, help="CPUs that it may grow to.")] = None,
    autoscale: Annotated[
        bool, typer.Option("--autoscale", help="Grow memory automatically, up to --max-memory.")
    ] = False,
    lock_size: Annotated[
        bool, typer.Option("--lock-size", help="Do not let programs inside change the size.")
    ] = False,
    disk: Annotated[int | None, typer.Option(min=1, help="Writable disk, in MiB.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Processes at once.")] = None,
    output: Annotated[int | None, typer.Option(min=1, help="Output of one command, in MiB.")] = None,
    network: Annotated[
        int | None, typer.Option(min=1, help="Network rate, both directions together, in MiB per second.")
    ] = None,
    timeout: Annotated[
        int | None, typer.Option(min=1, help="Run time, in seconds; then the sandbox is ended.")
    ] = None,
    lifecycle: LifecycleOption = None,
    sleep_after: Annotated[
        float | None,
        typer.Option(
            min=1, help=("Put the sandbox to sleep after this many unused seconds. It wakes when it is used.")
        ),
    ] = None,
    recover: RecoverOption = None,
    snapshot_every: EveryOption = None,
    rotate: RotateOption = None,
    backend: Annotated[
        str,
        typer.Option(help="Backend: microvm, namespace, or auto (a microVM if this machine can run one)."),
    ] = "auto",
    image: Annotated[
        str | None, typer.Option(metavar="NAME", help="Image; see coatcheck image list.")
    ] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:/PATH[:MIB]", help="Volume NAME:/PATH that outlives the sandbox. Repeatable."
        ),
    ] = None,
    env: EnvOption = None,
    identity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=CREDENTIAL,…]",
            help=(
                "Identity inside the sandbox (agent or tool), with its own user and session, and"
                " with all credentials or those listed. Repeatable. The command runs as the first."
            ),
        ),
    ] = None,
    lease: Annotated[
        float | None, typer.Option(min=1, help="Lease in seconds; renewed while the sandbox runs.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the sandbox running after the command has ended.")
    ] = False,
    tty: Annotated[
        bool | None,
        typer.Option("--tty/--no-tty", help="Allocate a terminal. Default: if standard input is a terminal."),
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            help=(
                "State directory if the command starts its own daemon. Default: a temporary one,"
                " removed afterwards."
            )
        ),
    ] = None,
    socket: SocketOption = None,
) -> None:
    """Run a command in a new sandbox that ends with the command.

    Standard streams, signals and the exit code are the command's; 125: coatcheck failed, 126 and 127: the
    command could not be started or found. The sandbox has neither your environment nor your files. If no
    daemon answers, or with a policy file or --secret, the sandbox gets its own daemon.

    \b
    Examples:
      coatcheck sandbox run -- python3 -c 'print(6 * 7)'
      tar c agent.py | coatcheck sandbox run --secret openai=key.txt -- sh -c 'tar x && python3 agent.py'
      coatcheck sandbox run --volume work:/work --keep -- bash
    """
    import getpass

    from coatcheck.cli.sandbox_run import FAILED, Command, environment_of
    from coatcheck.local.run import policy_file
    from coatcheck.settings.daemon import process_environment

    own = policy_file(policy)
    wanted: dict[str, Any] = {
        "tenant": tenant,
        "subject": subject or getpass.getuser(),
        "policy": own.stem if own is not None else policy or "default",
        "backend": None if backend == "auto" else backend,
        "image": image,
        "memory_mib": memory,
        "cpus": cpus,
        "max_memory_mib": max_memory,
        "max_cpus": max_cpus,
        "autoscale": {} if autoscale else None,
        "scaling": "outside" if lock_size else None,
        "disk_mib": disk,
        "processes": processes,
        "output_mib": output,
        "network_mib_per_second": network,
        "timeout_seconds": timeout,
        "idle_seconds": sleep_after,
        "idle": "sleep" if sleep_after is not None else None,
        "lifecycle": lifecycle,
        "recover": recover,
        "snapshot_every": snapshot_every,
        "rotate_snapshots": rotate,
        "lease_seconds": lease,
        "volumes": [_volume(text) for text in volume or ()] or None,
        "identities": [_identity(text) for text in identity or ()] or None,
    }
    check_keep(lifecycle, keep=keep)
    if backend not in ("auto", "microvm", "namespace"):
        raise CommandError(
            f"there is no backend {backend!r}", "write auto, microvm or namespace", ExitCode.USAGE
        )
    try:
        given = environment_of(env or (), process_environment())
    except KeyError as name:
        raise CommandError(
            f"--env {name.args[0]}: no such variable", "write NAME=VALUE", ExitCode.USAGE
        ) from None
    asked = Command(tuple(command), environment=given, tty=tty)
    try:
        code = _run(
            {name: value for name, value in wanted.items() if value is not None},
            asked,
            own,
            secret or [],
            state_dir,
            socket,
            keep=keep,
            named=policy is not None and own is None,
        )
    except Exception as problem:
        # 1 to 3 are the command's own codes here: what failed before it or beside it must look different.
        if getattr(problem, "exit_code", None) is ExitCode.USAGE or report(problem) is None:
            raise
        raise typer.Exit(FAILED) from None
    raise typer.Exit(code)


def _run(
    wanted: dict[str, Any],
    asked: Any,
    own: Path | None,
    secrets: list[str],
    state_dir: Path | None,
    socket: Path | None,
    *,
    keep: bool,
    named: bool,
) -> int:
    import asyncio

    from coatcheck.cli.own import secret
    from coatcheck.cli.sandbox_run import run_in_new
    from coatcheck.doctor.control import daemon_pid

    path = control_socket(socket)
    if own is None and not secrets and daemon_pid(path) is not None:
        return asyncio.run(run_in_new(path, wanted, asked, keep=keep))
    if socket is not None and own is None and not secrets:
        raise CommandError(f"no daemon answers at {socket}", "start it: coatcheck serve")
    if named:
        raise CommandError(
            f"no daemon has the policy {wanted['policy']!r}",
            "start one, or give a file: --policy mine.yaml",
        )
    if keep:
        raise CommandError(
            "a sandbox can be kept only if a daemon keeps running",
            "start one: coatcheck serve",
            ExitCode.USAGE,
        )
    return asyncio.run(_with_own_daemon(wanted, asked, own, dict(map(secret, secrets)), state_dir))


async def _with_own_daemon(
    wanted: dict[str, Any], asked: Any, policy: Path | None, secrets: dict[str, str], state_dir: Path | None
) -> int:
    from coatcheck.cli.own import own_daemon_for
    from coatcheck.cli.sandbox_run import run_in_new
    from coatcheck.platform.process_memory import hide_memory

    hide_memory()
    async with own_daemon_for(policy, secrets, state_dir, needs_secrets=False) as own:
        # Killed with SIGKILL, this process is the daemon that is gone: what it leaves ends within this lease.
        here = {"lease_seconds": OWN_LEASE_SECONDS} | wanted | {"policy": own.policy.name}
        return await run_in_new(own.control, here, asked, keep=False)


OWN_LEASE_SECONDS = 15.0


@app.command("exec", context_settings=NO_INTERSPERSED)
def execute(
    sandbox: SandboxArgument,
    command: Annotated[list[str], typer.Argument(help="Command and arguments, preferably after --.")],
    identity: IdentityOption = None,
    cwd: Annotated[str | None, typer.Option(help="Working directory. Default: the home directory.")] = None,
    env: EnvOption = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.001, help="Time limit in seconds; the command is then killed.")
    ] = None,
    tty: Annotated[
        bool | None,
        typer.Option("--tty/--no-tty", help="Allocate a terminal. Default: if standard input is a terminal."),
    ] = None,
    socket: SocketOption = None,
) -> None:
    """Run a command in an existing sandbox. Exit codes are those of `sandbox run`.

    Example: coatcheck sandbox exec sbx_0123456789abcdef -- ls -l /home/agent
    """
    import asyncio

    from coatcheck.cli.sandbox_run import FAILED, Command, environment_of, run_in_old
    from coatcheck.settings.daemon import process_environment

    try:
        given = environment_of(env or (), process_environment())
        # After SANDBOX nothing is an option any more, so that a `--` is still there.
        words = command[1:] if command[0] == "--" else command
        asked = Command(tuple(words), given, cwd, identity, timeout, tty)
        code = asyncio.run(run_in_old(control_socket(socket), sandbox, asked))
    except KeyError as name:
        raise CommandError(
            f"--env {name.args[0]}: no such variable", "write NAME=VALUE", ExitCode.USAGE
        ) from None
    except Exception as problem:
        if report(problem) is None:
            raise
        raise typer.Exit(FAILED) from None
    raise typer.Exit(code)


@app.command()
def cp(
    source: Annotated[str, typer.Argument(help="File, or SANDBOX:/PATH.")],
    target: Annotated[str, typer.Argument(help="File or directory, or SANDBOX:/PATH.")],
    identity: IdentityOption = None,
    socket: SocketOption = None,
) -> None:
    """Copy one file of any size into or out of a sandbox. Use tar(1) for a directory.

    \b
    Examples:
      coatcheck sandbox cp report.pdf sbx_0123456789abcdef:/home/agent/
      coatcheck sandbox cp sbx_0123456789abcdef:/home/agent/summary.md .
    """
    from coatcheck.cli.sandbox_run import copy

    inside = [text.startswith("sbx_") and ":" in text for text in (source, target)]
    if inside.count(True) != 1:
        raise CommandError(
            "one of the two must be SANDBOX:/PATH", "coatcheck sandbox cp --help shows both", ExitCode.USAGE
        )
    inwards = inside[1]
    sandbox, _, path = (target if inwards else source).partition(":")
    local = Path(source if inwards else target)
    if inwards and path.endswith("/"):
        path += local.name
    if not inwards and local.is_dir():
        local /= Path(path).name
    size = _done(copy(control_socket(socket), sandbox, inwards, local, path, identity))
    typer.echo(f"{size} bytes", err=True)


@app.command()
def rm(
    sandbox: Annotated[list[str], typer.Argument(metavar="SANDBOX…", help="Sandbox ids.")],
    why: Annotated[
        str | None, typer.Option(help="Reason for the audit log. Do not put a secret here.")
    ] = None,
    socket: SocketOption = None,
) -> None:
    """Remove sandboxes. Their sessions end at once, and nothing of them is left when the command returns.

    Example: coatcheck sandbox rm sbx_0123456789abcdef
    """
    client = client_for(socket)
    for each in sandbox:
        ended = client.kill_sandbox(each, why)
        typer.echo(f"{each}: {ended['state']} ({ended['ending']})")


@app.command()
def port(
    sandbox: SandboxArgument,
    number: Annotated[
        int, typer.Argument(metavar="PORT", min=1, max=65535, help="Port on the sandbox's loopback.")
    ],
    local: Annotated[int, typer.Option(min=0, max=65535, help="Local port. Default: any free port.")] = 0,
    identity: IdentityOption = None,
    socket: SocketOption = None,
) -> None:
    """Forward a local loopback port to a port of a sandbox, until Ctrl-C.

    Example: coatcheck sandbox port sbx_0123456789abcdef 8000 --local 8000
    """
    from coatcheck.cli.sandbox_run import forward

    _done(forward(control_socket(socket), sandbox, number, local, identity))


app.command("inspect")(inspection.inspect)
app.command("scale")(sandbox_scale.scale)
for command in sandbox_keeping.COMMANDS:
    app.command()(command)
for name, archived in sandbox_archive.COMMANDS.items():
    app.command(name)(archived)
app.command("list")(sandbox_listing.list_sandboxes)
for name in ("ls", "ps"):
    app.command(name, hidden=True)(sandbox_listing.list_sandboxes)
app.command("show")(sandbox_listing.show)


def _done(work: Coroutine[Any, Any, int]) -> int:
    import asyncio

    return asyncio.run(work)


def _volume(text: str) -> dict[str, Any]:
    name, _, rest = text.partition(":")
    at, _, size = rest.partition(":")
    if not name or not at.startswith("/") or (size and not size.isdigit()):
        raise CommandError(
            f"--volume {text}: it names no place", "write NAME:/PATH or NAME:/PATH:MIB", ExitCode.USAGE
        )
    return {"name": name, "at": at} | ({"size_mib": int(size)} if size else {})


def _identity(text: str) -> dict[str, Any]:
    name, equals, credentials = text.partition("=")
    if name not in ("agent", "tool"):
        raise CommandError(f"--identity {text}: no such sandbox", "agent or tool", ExitCode.USAGE)
    return {"name": name} | ({"credentials": [c for c in credentials.split(",") if c]} if equals else {})
