"""The network: what would send the wrong traffic somewhere, or is open too wide."""

import errno
import socket
from ipaddress import ip_address

from coatcheck.decision.address import METADATA, parse_networks, screen
from coatcheck.decision.host import HostRefused, split_authority
from coatcheck.doctor.finding import Finding, Subject, ok, problem, warning

WIDEST = {4: 8, 6: 32}
"""Prefix lengths. A shorter one opens a large part of all addresses, and 0 opens every one."""
PROXY_NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


def surroundings(subject: Subject) -> list[Finding]:
    """Proxy variables and secrets in the daemon's own environment."""
    check, found = "environment", []
    proxies = sorted(name for name in subject.environment if name.lower() in PROXY_NAMES)
    if proxies:
        found += warning(
            check,
            f"{', '.join(proxies)} are set here; the daemon ignores them, for Vault and upstreams",
            "if traffic must pass a corporate proxy, set COATCHECK_PARENT_PROXY; otherwise unset them",
        )
    if subject.environment.get("COATCHECK_VAULT_TOKEN"):
        found += warning(
            check,
            "COATCHECK_VAULT_TOKEN is set: a process's environment can be read by its user",
            "put the token into a 0600 file and set COATCHECK_VAULT_TOKEN_FILE",
        )
    return found or ok(check, "no proxy variables, no token")


def allowed_networks(subject: Subject) -> list[Finding]:
    """Private ranges that are opened, and fixed addresses that go past name resolution."""
    check, found = "destinations", []
    for network in parse_networks(subject.settings.allowed_networks):
        if network.prefixlen < WIDEST[network.version]:
            found += problem(
                check,
                f"allowed_networks opens {network}: sandboxes could reach almost every private address",
                "name the ranges of your own services only",
            )
        elif any(address in network for address in METADATA if address.version == network.version):
            found += warning(
                check,
                f"allowed_networks opens {network}, in which cloud metadata services live "
                "(they stay refused, their neighbours do not)",
                "name the ranges of your own services only",
            )
        elif network.is_loopback:
            found += warning(
                check,
                f"allowed_networks opens {network}: services on this machine can be reached by name",
                "keep it to development",
            )
    for name, target in subject.settings.connect_to.items():
        found += _fixed(check, name, target, subject)
    return found or ok(check, "no private range is opened that should not be")


def _fixed(check: str, name: str, target: str, subject: Subject) -> list[Finding]:
    try:
        host, _ = split_authority(target, None)
        split_authority(name, None)
    except (HostRefused, ValueError) as error:
        return problem(
            check,
            f"connect_to {name!r} -> {target!r} cannot be read: {error}",
            "write host:port and address:port",
        )
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return problem(check, f"connect_to {name}: {target} is no address", "write address:port")
    why = screen(host.strip("[]"), parse_networks(subject.settings.allowed_networks))
    if why is None:
        return []
    return problem(
        check,
        f"connect_to {name} leads to {target}, which is refused: {why}",
        "add its range to COATCHECK_ALLOWED_NETWORKS, if it is a service of yours",
    )


def ports(subject: Subject) -> list[Finding]:
    """Whether somebody else listens where the daemon will want to."""
    check, found = "ports", []
    settings = subject.settings
    wanted = [
        ("proxy_port", settings.proxy_host, settings.proxy_port),
        ("control_port", settings.control_host, settings.control_port),
    ]
    for name, host, port in wanted:
        if not port:
            continue
        taken = _taken(host, port)
        if taken == errno.EADDRINUSE and subject.daemon_pid is None:
            found += problem(
                check,
                f"{name}: another process listens on {host}:{port}",
                f"find it with ss -ltnp, or set COATCHECK_{name.upper()}",
            )
        elif taken and taken != errno.EADDRINUSE:
            found += problem(
                check,
                f"{name}: {host}:{port} cannot be listened on: {errno.errorcode.get(taken, taken)}",
                "give an address of this machine, and a port above 1023",
            )
    return found or ok(check, "free, or the daemon's own")


def _taken(host: str, port: int) -> int:
    """0, or the errno of listening there."""
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return 0
    except OSError as error:
        return error.errno or errno.EADDRNOTAVAIL
