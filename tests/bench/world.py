"""What is asked of all three proxies: the hosts, the credentials and who holds which handle.

20 rules, 50 credentials, 1,000 live sessions; 16 of the sessions carry the load, each with 4 handles of
its own, so that 64 different handles are in use.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RULES = 20
CREDENTIALS = 50
SESSIONS = 1000
CONNECTIONS = 16
HANDLES_A_CONNECTION = 4

HOSTS = tuple(f"api-{number:02}.bench.example" for number in range(RULES))
"""Never looked up: clients CONNECT to 127.0.0.1 or Coatcheck is told where each name leads, so that no
resolver stands in any of the three measurements."""

BUSY_HOSTS = HOSTS[:10]
"""These have four credentials each; the other ten share the rest."""

PATH = "/v1/chat/completions"


def credentials_of(host: str) -> tuple[str, ...]:
    """The names of the credentials that may go to `host`."""
    index = HOSTS.index(host)
    if index < len(BUSY_HOSTS):
        return tuple(f"key-{index:02}-{number}" for number in range(HANDLES_A_CONNECTION))
    return (f"key-{index:02}-0",)


def secret_of(credential: str) -> str:
    """The real key. The origin lets nothing else in."""
    return f"real-{credential}-0123456789abcdef0123456789abcdef"


def policy(more: Mapping[str, Any] | None = None) -> str:
    """The policy as a security team would write it: header injection, a limit on every rule. `more`: further
    credentials and rules."""
    more = more or {}
    credentials = {
        name: {
            "secret": f"vault:secret/{name}#api_key",
            "hosts": [host],
            "inject": {"header": "Authorization", "value": "Bearer {secret}"},
        }
        for host in HOSTS
        for name in credentials_of(host)
    }
    assert len(credentials) == CREDENTIALS
    rules = [
        {
            "name": f"calls to {host}",
            "hosts": [host],
            "methods": ["GET", "POST"],
            "paths": ["/v1/**"],
            "credentials": list(credentials_of(host)),
            "limits": [
                {"requests": "1000000/second", "burst": 1000000, "concurrent": 1000, "per": "session"}
            ],
        }
        for host in HOSTS
    ]
    document = {
        "version": 1,
        "owner": "bench",
        "credentials": credentials | more.get("credentials", {}),
        "rules": [*rules, *more.get("rules", ())],
    }
    return json.dumps(document, indent=1)  # JSON is YAML


@dataclass(frozen=True, slots=True)
class Route:
    """What one client connection needs: where the proxy is, where it tunnels to, whom it asks, as whom."""

    proxy: tuple[str, int] | None
    """None: straight to the origin."""
    tunnel: str
    """CONNECT's target."""
    host: str
    """SNI and Host."""
    handles: tuple[str, ...]
    """Used in turn, one a request."""
    origin: tuple[str, int] = ("127.0.0.1", 0)


def stock_handles() -> dict[str, str]:
    """Handle -> secret, for the proxies that only swap a header."""
    return {
        f"Bearer handle-{connection:02}-{name}": f"Bearer {secret_of(name)}"
        for connection in range(CONNECTIONS)
        for name in credentials_of(host_of(connection))
    }


def host_of(connection: int) -> str:
    """The host that the given connection, or session, talks to."""
    return BUSY_HOSTS[connection % len(BUSY_HOSTS)]


def stock_routes(proxy: tuple[str, int] | None, origin: tuple[str, int]) -> list[Route]:
    """One route a connection through a proxy that only swaps."""
    return [
        Route(
            proxy,
            f"{origin[0]}:{origin[1]}",
            host_of(connection),
            tuple(f"handle-{connection:02}-{name}" for name in credentials_of(host_of(connection))),
            origin,
        )
        for connection in range(CONNECTIONS)
    ]


def direct_routes(origin: tuple[str, int]) -> list[Route]:
    """Without a proxy the client has to hold the secrets."""
    return [
        Route(None, "", host, tuple(secret_of(name) for name in credentials_of(host)), origin)
        for host in (host_of(connection) for connection in range(CONNECTIONS))
    ]


def write_routes(path: Path, routes: list[Route]) -> None:
    path.write_text(json.dumps([asdict(route) for route in routes]))


def read_routes(path: Path) -> list[Route]:
    return [
        Route(tuple(r["proxy"]), r["tunnel"], r["host"], tuple(r["handles"]), tuple(r["origin"]))
        for r in json.loads(path.read_text())
    ]
