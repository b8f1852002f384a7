"""`coatcheck ca …`: the CA that sandboxes trust, and how each client is told to."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coatcheck.certificates.profile import PROFILE
from coatcheck.cli.control import JsonOption, StateDirOption, emit_json
from coatcheck.cli.errors import CommandError, ExitCode, note

if TYPE_CHECKING:
    from coatcheck.certificates.authority import Authority

app = typer.Typer(
    name="ca",
    no_args_is_help=True,
    help="The CA that sandboxes trust.\n\nExample: coatcheck ca new --days 90",
)

DirOption = Annotated[
    Path | None,
    typer.Option("--dir", help="Directory of the CA, mode 0700. Default: ca/ in the state directory."),
]
OutOption = Annotated[
    Path | None,
    typer.Option(help="Directory that sandboxes may read. Default: trust/ in the runtime directory."),
]


@app.command()
def new(
    name: Annotated[str, typer.Option(help="Name of the CA as clients show it.")] = PROFILE.ca.name,
    days: Annotated[
        int, typer.Option(min=1, help=f"Days until it expires, at most {PROFILE.ca.max_days}.")
    ] = PROFILE.ca.days,
    name_constraint: Annotated[
        list[str] | None,
        typer.Option(metavar="DOMAIN", help="Limit the CA to this domain (name constraint). Repeatable."),
    ] = None,
    force: Annotated[
        bool, typer.Option(help="Replace an existing CA. Every client must then trust the new one.")
    ] = False,
    successor: Annotated[
        bool,
        typer.Option(
            "--next",
            help=(
                "Prepare a successor next to the CA in use. Both are trusted once the daemon has reloaded."
            ),
        ),
    ] = False,
    directory: DirOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a CA: an EC key (mode 0600) and its certificate.

    A running daemon uses the old CA until it is restarted. To change the CA without disturbing sandboxes,
    use --next, reload the daemon, wait for running sandboxes to end, then run `coatcheck ca switch`.

    Example: coatcheck ca new --days 90 --name-constraint openai.com --name-constraint github.com
    """
    from coatcheck.certificates.authority import Authority
    from coatcheck.certificates.succession import NEXT, forget, prepare

    where, create = directory or _state(state_dir), prepare if successor else Authority.create
    made = create(where, name, days, tuple(name_constraint or ()), overwrite=force)
    if not successor:
        forget(where)
    where = where / NEXT if successor else where
    then = "restart the daemon, then give clients the new bundle: coatcheck ca bundle --out DIR"
    if successor:
        then = "reload the daemon; once every client also trusts the new CA, run: coatcheck ca switch"
    _say(made, where, then, as_json=as_json)


@app.command()
def switch(
    directory: DirOption = None, state_dir: StateDirOption = None, as_json: JsonOption = False
) -> None:
    """Replace the CA in use with the one that `new --next` prepared.

    Clients that started before the new CA was trusted reject the daemon after its restart. The old
    certificate, without its key, stays trusted for a week: the daemon signs with it until its restart.

    Example: coatcheck ca switch
    """
    from coatcheck.certificates.succession import switch as put

    where = directory or _state(state_dir)
    _say(put(where), where, "restart the daemon", as_json=as_json)


def _say(made: "Authority", where: Path, then: str, *, as_json: bool) -> None:
    if as_json:
        emit_json(
            {
                "certificate": str(where / "ca.pem"),
                "fingerprint": made.fingerprint,
                "not_after": made.not_after.isoformat(),
            }
        )
    else:
        typer.echo(f"certificate {where / 'ca.pem'}")
        typer.echo(f"sha256      {made.fingerprint}")
        typer.echo(f"expires     {made.not_after:%Y-%m-%d}")
        note("hint", then)


@app.command()
def bundle(
    out: Annotated[
        Path | None,
        typer.Option(help="Write the CA, the merged bundle and a Java trust store to this directory."),
    ] = None,
    nss: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Add the CA to the Chromium NSS database in this directory."),
    ] = None,
    roots: Annotated[
        Path | None, typer.Option(help="PEM file with the public roots. Default: the system's.")
    ] = None,
    directory: DirOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Print the public roots and the CA as one PEM bundle, or write trust files for clients.

    They include a successor prepared by `new --next` and, for a week after a switch, the previous CA.

    Example: coatcheck ca bundle --out /srv/sandbox/trust
    """
    from cryptography.x509 import load_pem_x509_certificates

    from coatcheck.certificates.trust import bundle as merged
    from coatcheck.certificates.trust import public_roots, write_nss_database, write_trust_files

    pem = _trusted(directory, state_dir)
    if nss is not None:
        typer.echo(str(write_nss_database(nss, pem)))
    if out is not None:
        files = write_trust_files(out, pem, roots)
        for path in (files.ca, files.bundle, files.java_truststore):
            typer.echo(str(path))
    elif nss is None:
        ca, *successor = load_pem_x509_certificates(pem)
        typer.echo(merged(ca, (*successor, *public_roots(roots))), nl=False)


@app.command()
def env(
    style: Annotated[str, typer.Option(help="Output format: sh, fish, json or dotenv.")] = "sh",
    proxy: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Also set the proxy variables to this URL (http://host:port)."),
    ] = None,
    out: OutOption = None,
    directory: DirOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Print environment variables that make curl, git, Python, Node, Java, Go, Rust and others trust the CA.

    Writes the files that the variables name if they are missing or belong to another CA.

    Example: eval "$(coatcheck ca env --proxy http://127.0.0.1:8080)"
    """
    from coatcheck.certificates.client_environment import (
        Style,
        file_variables,
        joined,
        proxy_variables,
        render,
        trust_variables,
    )
    from coatcheck.certificates.trust import write_trust_files

    if style not in set(Style):
        raise CommandError(f"there is no style {style!r}", "write sh, fish, json or dotenv", ExitCode.USAGE)
    pem = _trusted(directory, state_dir)
    files = write_trust_files((out or _runtime(state_dir) / "trust").absolute(), pem)
    proxied = proxy_variables(proxy) if proxy is not None else ()
    typer.echo(render(joined(trust_variables(files), file_variables(files), proxied), Style(style)), nl=False)


def _trusted(directory: Path | None, state_dir: Path | None) -> bytes:
    from coatcheck.certificates.authority import Authority
    from coatcheck.certificates.succession import trusted
    from coatcheck.settings.explained import load_settings

    where = directory or load_settings(state_dir=state_dir).state_dir / "ca"
    return trusted(where, Authority.load(where))


def _state(state_dir: Path | None) -> Path:
    """The daemon's own CA directory, made with the modes that the daemon will check."""
    from coatcheck.platform.state_directory import StateDirectory
    from coatcheck.settings.explained import load_settings

    return StateDirectory.open(load_settings(state_dir=state_dir).state_dir).ca


def _runtime(state_dir: Path | None) -> Path:
    from coatcheck.settings.explained import load_settings

    return load_settings(state_dir=state_dir).runtime
