"""What a plane saw, as frozen values. Planes build these; the core reads only these.

Header names are lower-case and values are latin-1 text, exactly as received: parsing that could
hide a difference between two readers happens in one place each (hosts in `host`, paths in `path`).
"""

from dataclasses import dataclass
from enum import StrEnum

from coatcheck.decision.outside import OutsideText

type Headers = tuple[tuple[OutsideText, OutsideText], ...]


class OriginClass(StrEnum):
    """How strongly an origin proves which sandbox is talking; strongest first."""

    SOCKET = "socket"
    MTLS = "mtls"
    TOKEN = "token"
    ADDRESS = "address"
    BEARER = "bearer"


@dataclass(frozen=True, slots=True)
class Origin:
    """The host-side fact that ties a connection to a session: a class and that class's value.

    `value` is: the session id (socket), the SHA-256 of the client certificate (mtls),
    `issuer|pod uid` (token), `listener|source address` (address), the SHA-256 of the
    Proxy-Authorization credential (bearer). Never a secret.
    """

    kind: OriginClass
    value: str


@dataclass(frozen=True, slots=True)
class OriginalDestination:
    """Where a redirected connection was going before it came to us. Evidence, never an address to dial."""

    address: str
    """As `ipaddress` writes it; an IPv4 address that came dressed as IPv6 (RFC 4291) is IPv4 here."""
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Peer:
    """The sender of a request, by host-side evidence only. `origins` is what the plane could establish."""

    listener: str
    origins: tuple[Origin, ...]
    original: OriginalDestination | None = None
    """Set on transparent connections only: the client knows of no proxy."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the request goes. `host` is canonical (see `host.canonical_host`)."""

    scheme: str
    """`https` or `http`."""
    host: str
    port: int

    @property
    def authority(self) -> str:
        """`host[:port]`, as Host has it; default ports are left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.scheme == "https" else 80
        return host if self.port == default else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """`https://host[:port]` for people to read; default ports are left out."""
        return f"{self.scheme}://{self.authority}" if self.host else "-"  # refused before it was known


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request's head in origin form."""

    method: str
    target: str
    """Path and query as received, e.g. `/v1/models?limit=2`."""
    headers: Headers
    http_version: str = "HTTP/1.1"
    end_stream: bool = True
    """True when no body follows."""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    def get(self, name: str) -> str | None:
        """The first value of header `name` (lower-case), or None."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def get_all(self, name: str) -> tuple[str, ...]:
        return tuple(value for key, value in self.headers if key == name)


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """A response's head."""

    status: int
    headers: Headers
    http_version: str = "HTTP/1.1"

    def get(self, name: str) -> str | None:
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def get_all(self, name: str) -> tuple[str, ...]:
        return tuple(value for key, value in self.headers if key == name)


@dataclass(frozen=True, slots=True)
class Edits:
    """What a plane must change in a request before it leaves. Order: remove, then set.

    Restricted to what every plane can express or honestly refuse.
    """

    set_headers: Headers = ()
    remove_headers: tuple[str, ...] = ()
    target: str | None = None
    body: bytes | None = None
    """The whole new body, when the plan needed it buffered; content-length follows from it."""
