"""A stock mitmdump with swap.py in it."""

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.corpus.peers.peer import HOSTS, PORT, Peer, placeholder, running
from tests.corpus.proxies import secrets

SWAP = Path(__file__).with_name("swap.py")


@asynccontextmanager
async def mitmdump(directory: Path, upstream_ca: Path) -> AsyncIterator[Peer]:
    """As it ships, but for where it listens and whom it trusts."""
    known, conf = directory / "swap.json", directory / "conf"
    values = secrets()
    by_host = {host: {placeholder(each): values[each]} for host, each in HOSTS.items() if each is not None}
    known.write_text(json.dumps({"hosts": list(HOSTS), "secrets": by_host}))
    known.chmod(0o600)
    command = [
        str(Path(sys.executable).with_name("mitmdump")), "-q",
        "--listen-host", "127.0.0.1", "--listen-port", str(PORT),
        "--set", f"confdir={conf}", "--set", f"ssl_verify_upstream_trusted_ca={upstream_ca}",
        "-s", str(SWAP),
    ]  # fmt: skip
    async with running(command, directory / "mitmdump.log", env=os.environ | {"SWAP": str(known)}):
        yield Peer("mitmdump", conf / "mitmproxy-ca-cert.pem")
