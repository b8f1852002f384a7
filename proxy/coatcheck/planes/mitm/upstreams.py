"""The upstream connections of one client connection: which were used, and why one was not made."""

from mitmproxy.connection import Connection, Server

from coatcheck.decision.denial import Deny, Reason
from coatcheck.planes.upstream.upstream import UpstreamRefused


class Upstreams:
    """Belongs to one client connection."""

    def __init__(self) -> None:
        self.failures: dict[Connection, UpstreamRefused] = {}
        """Why connections were not made, or given up in their handshakes."""
        self.used: set[Connection] = set()
        """Connections that have carried a request: a later failure there may be a stale one."""
        self._last_failed: Server | None = None

    def use(self, connection: Connection) -> bool:
        """A request goes out on `connection`; whether it is not the first one."""
        kept = connection in self.used
        self.used.add(connection)
        return kept

    def opened(self, connection: Server, *, usable: bool) -> None:
        """An attempt to open `connection` has ended."""
        self._last_failed = None if usable else connection

    def forget(self, connection: Connection) -> None:
        """It has ended."""
        self.used.discard(connection)
        self.failures.pop(connection, None)

    def denial(self) -> Deny:
        """Why the connection that just failed was not made."""
        failed, self._last_failed = self._last_failed, None
        if failed is not None:
            refused = self.failures.pop(failed, None)
            if refused is not None:
                return Deny(refused.reason, str(refused))
            if failed.timestamp_tcp_setup is not None and failed.tls:
                # mitmproxy's message may quote what the peer sent instead of TLS; OpenSSL's verdict not.
                known = failed.error if failed.error and "verify failed" in failed.error else ""
                return Deny(Reason.UPSTREAM_TLS, known or "the TLS handshake failed")
        return Deny(Reason.UPSTREAM_UNREACHABLE, "the connection failed before it was usable")
