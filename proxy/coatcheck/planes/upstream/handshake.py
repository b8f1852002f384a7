"""A deadline for the TLS handshake of an upstream that accepts the connection and is then silent."""

import asyncio
from collections.abc import MutableMapping
from typing import Final

from mitmproxy.connection import Connection
from mitmproxy.proxy.server import ConnectionIO

from coatcheck.decision.denial import Reason
from coatcheck.planes.upstream.parent_proxy import UpstreamRefused

SECONDS: Final = 10.0
"""The same as for a connection. Without it a request would wait for ANSWER_SECONDS."""


def limit_handshake(
    connection: Connection, io: ConnectionIO, failures: MutableMapping[Connection, UpstreamRefused]
) -> asyncio.TimerHandle:
    """Abort `connection` unless its handshake completes in time, and put the reason into `failures`. The
    returned timer must be cancelled when the connection ends."""

    def give_up() -> None:
        if connection.tls and connection.timestamp_tls_setup is None and io.writer is not None:
            why = UpstreamRefused(Reason.UPSTREAM_TIMEOUT, "the TLS handshake took too long")
            failures[connection] = why
            io.writer.transport.abort()  # type: ignore[union-attr]

    return asyncio.get_running_loop().call_later(SECONDS, give_up)
