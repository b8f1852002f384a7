"""What is to be redirected, as frozen values, checked when they are made: root's tools will read them."""

import re
from dataclasses import dataclass
from enum import StrEnum

from coatcheck.platform.errors import CoatcheckError

DNS = 53
"""Where programs ask for names. It is led to our resolver or closed, and never a port of `tcp_ports`."""
WEB_PORTS = (80, 443)
LARGEST_UID = 4_294_967_294
"""(uid_t)-1 means `no user`."""
LARGEST_PORT = 65_535
MOST_PORTS = 64
"""Of a kind. iptables has one rule for each, and every packet of the sandbox passes them."""

# The kernel takes more (dev_valid_name). Nothing here may end a quoted word of nft or begin an option.
_INTERFACE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,14}")


class RedirectError(CoatcheckError):
    """Rules cannot be made, applied or removed. `hint` says what to do next."""


class Ipv6(StrEnum):
    REDIRECTED = "redirected"
    """As IPv4: the listener is there on IPv6, too, and the session's origin is an IPv6 address."""
    CLOSED = "closed"
    """Refused at once, so that clients turn to IPv4. The default: a sandbox has one address as origin, and
    one that may use two looks like two."""


@dataclass(frozen=True, slots=True)
class AtInterface:
    """The rules of a host for the one sandbox whose packets arrive on `interface` (a veth's host end)."""

    interface: str
    port: int
    """Of the transparent listener, at an address of `interface`."""
    dns_port: int | None = None
    """Of our resolver, UDP and TCP, at the same address. None: no DNS at all."""
    tcp_ports: tuple[int, ...] = WEB_PORTS
    """Where programs connect to and what is redirected."""
    ipv6: Ipv6 = Ipv6.CLOSED

    def __post_init__(self) -> None:
        check_interface(self.interface)
        _check_ports(self.port, self.dns_port, self.tcp_ports)

    @property
    def place(self) -> "Place":
        return self.interface


@dataclass(frozen=True, slots=True)
class Inside:
    """The rules in a sandbox's own network namespace: a pod with the proxy as sidecar."""

    proxy_uid: int
    """The only user whose packets may leave the namespace. No process of the sandbox may become it."""
    port: int
    """Of the transparent listener, on 127.0.0.1 and ::1."""
    dns_port: int | None = None
    tcp_ports: tuple[int, ...] = WEB_PORTS
    ipv6: Ipv6 = Ipv6.CLOSED
    kept_out: tuple[int, ...] = ()
    """TCP ports of this namespace that are for the proxy's user alone: a control API, an admin page."""

    def __post_init__(self) -> None:
        if not 0 < self.proxy_uid <= LARGEST_UID:
            raise RedirectError(
                f"the proxy and the sandbox both have uid {self.proxy_uid}",
                "run it as a user of its own, not as root, and give that uid",
            )
        _check_ports(self.port, self.dns_port, self.tcp_ports)
        _check("port to keep out of", self.kept_out)
        if self.port in self.kept_out or (self.dns_port is not None and self.dns_port in self.kept_out):
            raise RedirectError(
                "a port cannot be both redirected to and protected from the sandbox",
                "leave the listener's and the resolver's ports out of the ports that are kept out",
            )

    @property
    def place(self) -> "Place":
        return None


type Plan = AtInterface | Inside
type Place = str | None
"""Whose rules they are, all that removing them needs: an interface's, or (None) a namespace's own."""


def check_interface(name: str) -> None:
    """RedirectError for what is no interface's name, or none that a sandbox is behind."""
    if not _INTERFACE.fullmatch(name):
        raise RedirectError(
            f"{name!r} is not the name of a network interface",
            "give the host's end of the sandbox's veth pair, as `ip link` shows it",
        )
    if name == "lo":
        raise RedirectError(
            "lo is this machine's own loopback, and no sandbox arrives there",
            "give the host's end of the sandbox's veth pair, or use --inside in the sandbox's namespace",
        )


def _check_ports(port: int, dns_port: int | None, tcp_ports: tuple[int, ...]) -> None:
    _check("listener's port", (port,))
    if dns_port is not None:
        _check("resolver's port", (dns_port,))
        if dns_port == port:
            raise RedirectError(
                f"{port} is given for the listener and for the resolver",
                "give each a port of its own",
            )
    _check("port to redirect", tcp_ports)
    if not tcp_ports:
        raise RedirectError("no TCP port is redirected", "give at least one, for example 443")
    if DNS in tcp_ports:
        raise RedirectError(
            "TCP port 53 is DNS, which the HTTP listener does not speak",
            "leave it out; give the resolver's port to have DNS answered",
        )


def _check(what: str, ports: tuple[int, ...]) -> None:
    for port in ports:
        if not 0 < port <= LARGEST_PORT:
            raise RedirectError(f"{port} is no {what}", f"give a number from 1 to {LARGEST_PORT}")
    if len(set(ports)) != len(ports):
        raise RedirectError(f"a {what} is given twice", "give each once")
    if len(ports) > MOST_PORTS:
        raise RedirectError(f"{len(ports)} times a {what} is given", f"give at most {MOST_PORTS}")
