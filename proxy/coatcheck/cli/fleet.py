"""`coatcheck fleet …`: the SQL that a database needs for a fleet, printed or run."""

from pathlib import Path
from typing import Annotated

import typer

from coatcheck.cli.errors import CommandError, ExitCode

app = typer.Typer(
    name="fleet",
    no_args_is_help=True,
    help="State that daemons share in PostgreSQL.\n\nExample: coatcheck fleet tables | psql coatcheck",
)

NameOption = Annotated[str, typer.Option("--name", help="Name of the fleet: shared_state_name.")]


@app.command()
def roles(name: NameOption = "coatcheck") -> None:
    """Print the SQL that makes the fleet's two roles and its schema. An administrator runs it once.

    Example: coatcheck fleet roles | psql coatcheck
    """
    from coatcheck.fleet.schema import roles_sql

    typer.echo(roles_sql(_checked(name)), nl=False)


@app.command()
def tables(name: NameOption = "coatcheck") -> None:
    """Print the SQL that makes the fleet's tables, or brings those of an older release forward.

    Run it for each release, before the first daemon of that release starts. Again is no error, and older
    daemons go on running.

    Example: coatcheck fleet tables | psql coatcheck
    """
    from coatcheck.fleet.schema import tables_sql

    typer.echo(tables_sql(_checked(name)), nl=False)


@app.command()
def migrate(
    url: Annotated[
        str, typer.Option(help="Database, as in shared_state: postgresql://user@host:5432/database.")
    ],
    user_file: Annotated[
        Path | None, typer.Option(help="File with the name of the user, instead of one in the URL.")
    ] = None,
    password_file: Annotated[Path | None, typer.Option(help="File with the password of the user.")] = None,
    ca_file: Annotated[
        Path | None, typer.Option(help="PEM file with the CAs of the database. Default: the public ones.")
    ] = None,
    name: NameOption = "coatcheck",
) -> None:
    """Make the fleet's tables, or bring those of an older release forward.

    It runs what `coatcheck fleet tables` prints, as a user who is a member of coatcheck_migrator. Again is no
    error, and older daemons go on running. The Helm chart runs it before each upgrade: docs/kubernetes.md.

    Example: coatcheck fleet migrate --url postgresql://migrator@db.example.com/coatcheck --password-file p
    """
    from coatcheck.fleet.migration import migrate as run
    from coatcheck.settings.shared_state import server_at

    try:
        server = server_at(url, user_file, password_file, ca_file)
    except ValueError as problem:
        raise CommandError(str(problem), "correct --url", ExitCode.USAGE) from None
    run(server, _checked(name))


def _checked(name: str) -> str:
    from coatcheck.settings.shared_state import is_fleet_name

    if not is_fleet_name(name):
        raise CommandError(
            f"{name} is no name of a fleet", "Use a-z, 0-9 and -, at most 40 of them.", ExitCode.USAGE
        )
    return name
