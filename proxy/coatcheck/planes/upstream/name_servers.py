"""Resolving names with the name servers of the settings, or with the system's current ones."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mitmproxy_rs.dns import DnsResolver

RESOLV_CONF: Final = Path("/etc/resolv.conf")


class NameServers:
    """A resolver. The system's servers are read anew when `resolv.conf` changes: a laptop that comes to
    another network, or a node whose DNS moved, must not need a restart."""

    def __init__(self, servers: Sequence[str], system: Path = RESOLV_CONF) -> None:
        self._servers = list(servers) or None
        self._system = system
        self._seen = self._stamp()
        self._resolver = self._make()

    async def lookup_ip(self, host: str) -> list[str]:
        """The addresses of `host`. OSError."""
        return await self.resolver().lookup_ip(host)

    def resolver(self) -> DnsResolver:
        """The current one; asks the file system whether `resolv.conf` changed."""
        if self._servers is None and (now := self._stamp()) != self._seen:
            self._seen, self._resolver = now, self._make()
        return self._resolver

    def _make(self) -> DnsResolver:
        return DnsResolver(name_servers=self._servers, use_hosts_file=True)

    def _stamp(self) -> object:
        try:
            found = os.stat(self._system)
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)
