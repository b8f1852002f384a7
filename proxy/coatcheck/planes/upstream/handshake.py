"""An upstream that takes our connection and then is silent: its TLS handshake has a deadline."""

import asyncio
from collections.abc import MutableMapping
from typing import Final

from mitmproxy.connection import Connection
from mitmproxy.proxy.server import ConnectionIO

from coatcheck.decision.denial import Reason
from coatcheck.planes.upstream.parent_proxy import UpstreamRefused

SECONDS: Final = 10.0
"""As for a connection. Without it a request would wait as long as models may think (ANSWER_SECONDS)."""


def limit_handshake(
    connection: Connection, io: ConnectionIO, failures: MutableMapping[Connection, UpstreamRefused]
) -> asyncio.TimerHandle:
    """Give `connection` up unless its TLS stands in time; then `failures` says why. Cancel it at its end."""

    def give_up() -> None:
        if connection.tls and connection.timestamp_tls_setup is None and io.writer is not None:
            why = UpstreamRefused(Reason.UPSTREAM_TIMEOUT, "the TLS handshake took too long")
            failures[connection] = why
            io.writer.transport.abort()  # type: ignore[union-attr]

    return asyncio.get_running_loop().call_later(SECONDS, give_up)
