"""Squid with TLS interception: an allowlist of names, and a header that it adds for a host.

It has no placeholders: whatever the sandbox sends as Authorization to that host is replaced by the secret.
"""

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trustme

from tests.corpus.peers.peer import HOSTS, PORT, Peer, running
from tests.corpus.proxies import secrets
from tests.debian import find

CERTIFICATES = "/usr/lib/squid/security_file_certgen"
HEADERS = {"vendor": ("Authorization", "Bearer "), "second": ("X-Api-Key", "")}


def configuration(directory: Path, upstream_ca: Path) -> str:
    lines = [
        f"http_port 127.0.0.1:{PORT} ssl-bump generate-host-certificates=on tls-cert={directory / 'ca.pem'}",
        f"sslcrtd_program {CERTIFICATES} -s {directory / 'certificates'} -M 4MB",
        f"tls_outgoing_options cafile={upstream_ca}",
        "acl step1 at_step SslBump1",
        "ssl_bump peek step1",
        "ssl_bump bump all",
        f"acl allowed dstdomain {' '.join(HOSTS)}",
        "acl safe port 80 443",
        "http_access deny !safe",
        "http_access allow allowed",
        "http_access deny all",
        "cache deny all",
        "access_log none",
        f"cache_log {directory / 'cache.log'}",
        f"pid_filename {directory / 'squid.pid'}",
        "shutdown_lifetime 0 seconds",
    ]
    for host, credential in HOSTS.items():
        if credential is not None:
            name, before = HEADERS[credential]
            lines += [
                f"acl {credential} dstdomain {host}",
                f"request_header_access {name} deny {credential}",
                f'request_header_add {name} "{before}{secrets()[credential]}" {credential}',
            ]
    return "\n".join(lines) + "\n"


@asynccontextmanager
async def squid(directory: Path, upstream_ca: Path) -> AsyncIterator[Peer]:
    """FileNotFoundError where Debian's squid-openssl is not installed."""
    program = find("squid")
    if program is None:
        raise FileNotFoundError("squid is not installed: apt-get install squid-openssl")
    authority = trustme.CA()
    pem = authority.private_key_pem.bytes() + authority.cert_pem.bytes()
    (directory / "ca.pem").write_bytes(pem)
    authority.cert_pem.write_to_path(directory / "ca-certificate.pem")
    # Squid gives up root for its own user, who must come at all of this.
    directory.chmod(0o777)
    subprocess.run(
        [CERTIFICATES, "-c", "-s", str(directory / "certificates"), "-M", "4MB"],
        check=True,
        capture_output=True,
    )
    for path in (directory / "certificates", *(directory / "certificates").rglob("*"), directory / "ca.pem"):
        path.chmod(0o777)
    config = directory / "squid.conf"
    config.write_text(configuration(directory, upstream_ca))
    async with running([program, "-N", "-f", str(config)], directory / "squid.log"):
        yield Peer("squid", directory / "ca-certificate.pem")
