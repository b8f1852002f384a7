"""The settings of state that a fleet of daemons shares in Redis or Valkey: a part of `settings`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from pydantic import BaseModel, Field, model_validator

from coatcheck.platform.web_url import split_url

DEFAULT_PORT: Final = 6379
_WRITE: Final = "write shared_state as rediss://user@host:6379, redis://127.0.0.1:6379 or unix://user@/path"
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class SharedStateServer:
    """Where Redis is and how we prove ourselves."""

    host: str
    port: int
    path: str
    """Of its Unix socket; then host and port mean nothing."""
    tls: bool
    user: str | None
    password_file: Path | None = field(default=None, repr=False)
    ca_file: Path | None = None
    certificate: Path | None = None
    """PEM certificate and key, for servers that want one."""

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.path else f"{self.host}:{self.port}"


class SharedStateSettings(BaseModel):
    """Unset `shared_state`: this daemon keeps its state for itself, as on a laptop."""

    shared_state: str | None = Field(
        None,
        description="URL of the Redis or Valkey that daemons of a fleet share sessions in:"
        " `rediss://user@host:6379`, `redis://…` on loopback, or `unix://user@/path`. Needs the"
        " extra `fleet`. Unset: nothing is shared. See docs/fleet.md.",
    )
    shared_state_key: Path | None = Field(
        None,
        description="File with 64 hexadecimal digits, mode 0600, the same for every daemon of the fleet. Data"
        " in Redis is encrypted with it. Create it with `openssl rand -hex 32`.",
    )
    shared_state_password_file: Path | None = Field(
        None, description="File with the password of the Redis user; read for each connection."
    )
    shared_state_ca_file: Path | None = Field(
        None,
        description="PEM file with the CAs that the certificate of a `rediss` server may chain to. Unset: the"
        " public CAs.",
    )
    shared_state_certificate: Path | None = Field(
        None, description="PEM file with a client certificate and key, for a Redis that requires one."
    )
    shared_state_name: str = Field(
        "coatcheck",
        pattern="^[a-z0-9-]{1,40}$",
        description="Name of the fleet. All of its Redis keys begin with `coatcheck:{NAME}:`.",
    )
    shared_state_max_silence: float = Field(
        5.0,
        ge=1,
        le=60,
        description="How long Redis may be silent before all requests are refused and open connections are"
        " cut, in seconds. It is also the longest time a revocation takes to reach a daemon that"
        " is cut off from Redis.",
    )
    shared_state_max_skew: float = Field(
        5.0,
        gt=0,
        le=60,
        description="Largest accepted difference between the clocks of this host and of Redis, in seconds."
        " The daemon refuses requests beyond it.",
    )
    shared_state_replicas: int = Field(
        0,
        ge=0,
        le=10,
        description="Number of Redis replicas that must confirm a revocation before it is answered (WAIT), so"
        " that a failover cannot lose it. 0: the primary only.",
    )

    @model_validator(mode="after")
    def _shared_state(self) -> "SharedStateSettings":
        if self.shared_state is None:
            for name in ("key", "password_file", "ca_file", "certificate"):
                if getattr(self, f"shared_state_{name}") is not None:
                    raise ValueError(f"shared_state_{name} has no effect without shared_state")
            return self
        server = self.shared_state_server
        if self.shared_state_key is None:
            raise ValueError("shared_state needs shared_state_key: data there is encrypted with it")
        if server is not None and not server.tls:
            for name in ("ca_file", "certificate"):
                if getattr(self, f"shared_state_{name}") is not None:
                    raise ValueError(f"shared_state_{name} has no effect without rediss://")
        return self

    @property
    def shared_state_server(self) -> SharedStateServer | None:
        if self.shared_state is None:
            return None
        host, port, path, tls, user = _parsed(self.shared_state)
        return SharedStateServer(
            host,
            port,
            path,
            tls,
            user,
            self.shared_state_password_file,
            self.shared_state_ca_file,
            self.shared_state_certificate,
        )


def _parsed(url: str) -> tuple[str, int, str, bool, str | None]:
    parts = split_url(url)
    if parts is None:
        raise ValueError(_WRITE)
    if parts.password is not None:
        raise ValueError("shared_state holds a password: it belongs into shared_state_password_file")
    user = unquote(parts.username) if parts.username else None
    plain = not (parts.query or parts.fragment)
    if plain and parts.scheme == "unix" and parts.path.startswith("/") and not parts.hostname:
        return "", 0, unquote(parts.path), False, user
    tls = parts.scheme == "rediss"
    if not plain or parts.scheme not in ("redis", "rediss") or not parts.hostname or parts.path.strip("/"):
        raise ValueError(_WRITE)
    if not tls and parts.hostname not in LOOPBACK:
        raise ValueError("shared_state would cross a network in the clear: use rediss:// beyond loopback")
    return parts.hostname, parts.port or DEFAULT_PORT, "", tls, user
