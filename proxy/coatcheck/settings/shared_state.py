"""The settings of state that a fleet of daemons shares in PostgreSQL: a part of `settings`."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from pydantic import BaseModel, Field, model_validator

from coatcheck.platform.web_url import split_url

DEFAULT_PORT: Final = 5432
DEFAULT_DATABASE: Final = "coatcheck"
_WRITE: Final = (
    "write shared_state as postgresql://user@host:5432/database, postgresql://user@first,second/database or"
    " postgresql://user@/database?host=/directory-of-its-socket"
)
_SUCCESSOR: Final = (
    "fleets share their state in PostgreSQL, not in Redis or Valkey: set shared_state to"
    " postgresql://user@host:5432/database; docs/fleet.md says how to move a fleet"
)
GONE: Final = {
    "shared_state_replicas": "shared_state_replicas was for Redis: set synchronous_standby_names in"
    " PostgreSQL, and what is answered is on the standby, too; see docs/fleet.md"
}
"""Settings of an earlier release, and what took their place."""
NAME: Final = "^[a-z0-9-]{1,40}$"
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class SharedStateServer:
    """Where PostgreSQL is and how we prove ourselves."""

    hosts: tuple[tuple[str, int], ...]
    """In the order in which they are tried; the first that takes writes is used."""
    directory: str
    """Of its Unix socket; then the hosts mean nothing but their port."""
    database: str
    user: str | None
    user_file: Path | None = None
    password_file: Path | None = field(default=None, repr=False)
    ca_file: Path | None = None
    certificate: Path | None = None
    """PEM certificate and key, for servers that require one."""

    @property
    def tls(self) -> bool:
        """Off on loopback and Unix sockets only."""
        return not self.directory and not all(host in LOOPBACK for host, _ in self.hosts)

    @property
    def verified(self) -> bool:
        """Whether the server must prove its name. On loopback it does where certificates are given."""
        return self.tls or self.ca_file is not None or self.certificate is not None

    def __str__(self) -> str:
        if self.directory:
            return f"{self.directory} ({self.database})"
        return ",".join(f"{host}:{port}" for host, port in self.hosts)


class SharedStateSettings(BaseModel):
    """Unset `shared_state`: this daemon keeps its state for itself, as on a laptop."""

    shared_state: str | None = Field(
        None,
        description="URL of the PostgreSQL database that daemons of a fleet share sessions in:"
        " `postgresql://user@host:5432/database`. Several hosts, separated by commas, are tried in order, and"
        " the one that takes writes is used. TLS is verified except on loopback and on a Unix socket"
        " (`postgresql://user@/database?host=/run/postgresql`). Needs the extra `fleet`. Unset: nothing is"
        " shared. See docs/fleet.md.",
    )
    shared_state_key: Path | None = Field(
        None,
        description="File with 64 hexadecimal digits, mode 0600, the same for every daemon of the fleet. Data"
        " in the database is encrypted with it. Create it with `openssl rand -hex 32`.",
    )
    shared_state_user_file: Path | None = Field(
        None,
        description="File with the name of the database user, instead of one in the URL; read for each"
        " connection. For credentials that rotate, such as those of Vault's database engine.",
    )
    shared_state_password_file: Path | None = Field(
        None, description="File with the password of the database user; read for each connection."
    )
    shared_state_ca_file: Path | None = Field(
        None,
        description="PEM file with the CAs that the database's certificate may chain to. Unset: the public"
        " CAs.",
    )
    shared_state_certificate: Path | None = Field(
        None, description="PEM file with a client certificate and key, for a database that requires one."
    )
    shared_state_name: str = Field(
        "coatcheck",
        pattern=NAME,
        description="Name of the fleet: of the database schema that holds its tables.",
    )
    shared_state_max_silence: float = Field(
        5.0,
        ge=1,
        le=60,
        description="How long the database may be silent before all requests are refused and open connections"
        " are cut, in seconds. It is also the longest time a revocation takes to reach a daemon that"
        " is cut off from the database.",
    )
    shared_state_max_skew: float = Field(
        5.0,
        gt=0,
        le=60,
        description="Largest accepted difference between the clocks of this host and of the database, in"
        " seconds. The daemon refuses requests beyond it.",
    )

    @model_validator(mode="before")
    @classmethod
    def _gone(cls, given: Any) -> Any:
        for name, successor in GONE.items():
            if isinstance(given, dict) and name in given:
                raise ValueError(successor)
        return given

    @model_validator(mode="after")
    def _shared_state(self) -> "SharedStateSettings":
        if self.shared_state is None:
            for name in ("key", "user_file", "password_file", "ca_file", "certificate"):
                if getattr(self, f"shared_state_{name}") is not None:
                    raise ValueError(f"shared_state_{name} has no effect without shared_state")
            return self
        server = self.shared_state_server
        if self.shared_state_key is None:
            raise ValueError("shared_state needs shared_state_key: data there is encrypted with it")
        if server is not None and server.directory:
            for name in ("ca_file", "certificate"):
                if getattr(self, f"shared_state_{name}") is not None:
                    raise ValueError(f"shared_state_{name} has no effect on a Unix socket")
        if server is not None and server.user is not None and self.shared_state_user_file is not None:
            raise ValueError("shared_state names a user, and shared_state_user_file another: keep one")
        return self

    @property
    def shared_state_server(self) -> SharedStateServer | None:
        if self.shared_state is None:
            return None
        return server_at(
            self.shared_state,
            self.shared_state_user_file,
            self.shared_state_password_file,
            self.shared_state_ca_file,
            self.shared_state_certificate,
        )


def server_at(
    url: str,
    user_file: Path | None,
    password_file: Path | None,
    ca_file: Path | None,
    certificate: Path | None = None,
) -> SharedStateServer:
    """The server that a URL names. ValueError says how to write it."""
    hosts, directory, database, user = _parsed(url)
    return SharedStateServer(hosts, directory, database, user, user_file, password_file, ca_file, certificate)


def is_fleet_name(name: str) -> bool:
    """Whether SQL and a notification's channel can bear it."""
    return re.fullmatch(NAME, name) is not None


def _parsed(url: str) -> tuple[tuple[tuple[str, int], ...], str, str, str | None]:
    scheme, _, rest = url.partition("://")
    if scheme in ("redis", "rediss", "unix", "valkey", "valkeys"):
        raise ValueError(_SUCCESSOR)
    if scheme not in ("postgresql", "postgres"):
        raise ValueError(_WRITE)
    network, slash, path = rest.partition("/")
    user, at, where = network.rpartition("@")
    if ":" in user:
        raise ValueError("shared_state holds a password: it belongs into shared_state_password_file")
    hosts: list[tuple[str, int]] = []
    directory, database = "", ""
    for number, each in enumerate(where.split(",")):
        # One host at a time, and the path and options with the first.
        parts = split_url(f"postgresql://{user}{at}{each}{slash}{path}" if number == 0 else f"x://{each}")
        if parts is None or parts.fragment or (parts.username is not None) != (bool(at) and number == 0):
            raise ValueError(_WRITE)
        if number == 0:
            database = unquote(parts.path.removeprefix("/"))
            options = (
                parse_qs(parts.query, keep_blank_values=True, strict_parsing=True) if parts.query else {}
            )
            directory = options.pop("host", [""])[0]
            if options or (directory and not directory.startswith("/")):
                raise ValueError(_WRITE)
        if bool(parts.hostname) == bool(directory):
            raise ValueError(_WRITE)
        hosts.append((parts.hostname or "", parts.port or DEFAULT_PORT))
    if "/" in database or "\0" in database or (directory and len(hosts) > 1):
        raise ValueError(_WRITE)
    return tuple(hosts), directory, database or DEFAULT_DATABASE, unquote(user) if at else None
