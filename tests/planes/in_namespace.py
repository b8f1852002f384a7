"""Run in a network namespace of its own: a daemon with its transparent listener, redirects into it, clients.

`python -m tests.planes.in_namespace DIRECTORY` prints what the clients saw and what was recorded, as JSON.
"""

import asyncio
import json
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import trustme

from coatcheck.decision.message import Origin, OriginClass
from coatcheck.decision.synthetic import IPV4, IPV6
from coatcheck.state.sessions import NewSession
from demo.upstreams.origin import origin
from tests.daemon import TestDaemon, running_daemon
from tests.debian import find
from tests.planes.dns.test_message import query
from tests.planes.redirected import dialled
from tests.planes.wire import Wire
from tests.system.planes.dns.test_resolver import POLICY, addresses, over_udp

HOST = "upstream.example"
RESOLVER = "203.0.113.53"
"""As it may stand in a container's resolv.conf; nobody is there."""


def redirect(transparent: int, dns: int) -> None:
    """Everything to our synthetic addresses, and every question, leads to the daemon."""
    ip, nft = find("ip") or "ip", find("nft") or "nft"
    commands = (
        f"{ip} link set lo up",
        f"{ip} route add {IPV4} dev lo src 127.0.0.1",
        f"{ip} route add {RESOLVER} dev lo src 127.0.0.1",
        f"{ip} -6 route add {IPV6} dev lo",
        f"{nft} add table inet t",
        f"{nft} add chain inet t out {{ type nat hook output priority -100 ; }}",
        f"{nft} add rule inet t out ip daddr {IPV4} tcp dport 1-65535 redirect to :{transparent}",
        f"{nft} add rule inet t out ip6 daddr {IPV6} tcp dport 1-65535 redirect to :{transparent}",
        f"{nft} add rule inet t out udp dport 53 redirect to :{dns}",
    )
    for command in commands:
        subprocess.run(command.split(), check=True)


async def ask(daemon: TestDaemon, to: str, port: int, name: str, authority: str) -> str:
    """The first line of the answer over TLS."""
    try:
        reader, writer = await asyncio.open_connection(to, port)
        raw = Wire(reader, writer)
        await raw.start_tls(daemon.trust.ca, name)
        await raw.send(f"GET /big?bytes=2 HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
        return (await raw.head()).partition("\r\n")[0]
    except (OSError, ssl.SSLError) as error:
        return type(error).__name__


async def directly(to: tuple[str, int]) -> str:
    """Somebody who comes to the listener itself."""
    reader, writer = await asyncio.open_connection(*to)
    raw = Wire(reader, writer)
    await raw.send(b"GET / HTTP/1.1\r\nHost: upstream.example\r\n\r\n")
    return await raw.refused_because()


async def run(directory: Path) -> dict[str, Any]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    leaf = authority.issue_cert(HOST)
    leaf.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    leaf.private_key_pem.write_to_path(directory / "key.pem")
    async with (
        origin(directory / "cert.pem", directory / "key.pem", {}, names=(HOST,)) as upstream,
        running_daemon(
            directory,
            POLICY,
            upstream_ca=directory / "ca.pem",
            connect_to={f"{HOST}:443": upstream.port},
            transparent_hosts=("127.0.0.1", "::1"),
            transparent_port=0,
            transparent_trust_addresses=True,
            dns_port=0,
        ) as daemon,
    ):
        four, six = daemon.addresses.transparent
        redirect(four[1], daemon.addresses.dns[0][1])
        for source in ("127.0.0.1", "::1"):
            who = Origin(OriginClass.ADDRESS, f"transparent|{source}")
            new = NewSession(tenant="acme", subject=source, policy="default", origin=who)
            daemon.state.open_session(new, "test")
        return {
            "resolved": [addresses(got) for got in await over_udp((RESOLVER, 53), query(HOST))],
            "ipv4": await ask(daemon, dialled(HOST), 443, HOST, HOST),
            "ipv6": await ask(daemon, dialled(HOST, 6), 443, HOST, HOST),
            "another name's": await ask(daemon, dialled("other.example"), 443, HOST, HOST),
            "another port": await ask(daemon, dialled(HOST), 8443, HOST, f"{HOST}:8443"),
            "directly": [await directly(four), await directly(six)],
            "originals": [record["original"] for record in daemon.decisions()],
            "origins": [record["origin"] for record in daemon.decisions()],
        }


if __name__ == "__main__":
    subprocess.run([find("ip") or "ip", "link", "set", "lo", "up"], check=True)
    print(json.dumps(asyncio.run(run(Path(sys.argv[1])))))
