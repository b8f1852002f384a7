"""The mitmproxy plane: an embedded Master, and all client connections.

The Master carries a short, explicit list of addons: `Proxyserver` (its options only; it listens nowhere) and
this plane. None of the thirty default addons is loaded: some of them would record flows after substitution.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from functools import partial

from mitmproxy import tls
from mitmproxy.proxy import layer
from mitmproxy.proxy.layers.http import HttpRequestHook
from mitmproxy.proxy.layers.tls import TlsClienthelloHook, TlsStartClientHook, TlsStartServerHook

from coatcheck.decision.denial import Deny, Reason
from coatcheck.planes.mitm.adaptations import adapt_mitmproxy
from coatcheck.planes.mitm.connection import EgressConnection
from coatcheck.planes.mitm.flow import EgressFlow
from coatcheck.planes.mitm.hooks import VerdictHook, hook_table
from coatcheck.planes.mitm.layers import next_layer
from coatcheck.planes.mitm.link import Link
from coatcheck.planes.mitm.master import Master, Proxyserver
from coatcheck.planes.mitm.session_ca import SessionCas, SigningCa
from coatcheck.planes.mitm.shared import Shared
from coatcheck.planes.mitm.tls import ClientTls, UpstreamTls
from coatcheck.planes.origins.platform_token import PlatformTokens
from coatcheck.planes.upstream.upstream import Upstream
from coatcheck.request.exchange import Exchange, Waiting

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
"""How often connections are checked for deadlines and leases that have passed."""


class MitmPlane:
    """Belongs to one event loop."""

    def __init__(
        self,
        exchange: Exchange,
        upstream: Upstream,
        client_tls: ClientTls,
        upstream_tls: UpstreamTls,
        tokens: PlatformTokens | None = None,
        session_cas: SessionCas | None = None,
        *,
        refuse_inside_tls: bool,
    ) -> None:
        signing_ca = SigningCa(client_tls, session_cas)
        self.shared = Shared(
            exchange, upstream, signing_ca, upstream_tls, tokens, refuse_inside_tls=refuse_inside_tls
        )
        self.exchange = exchange
        self.upstream = upstream
        self.session_cas = session_cas
        self.ended = 0
        """Client connections so far that are over."""
        self._connections: dict[str, EgressConnection] = {}
        """By mitmproxy's id of the client."""
        adapt_mitmproxy()
        # mitmproxy logs what peers send; only our own words are logged (I1). It also warns at each start that
        # an addon is missing whose work is done here.
        logging.getLogger("mitmproxy").setLevel(logging.CRITICAL)
        self.options = self.shared.options
        self.master = Master(self.options)
        self.master.addons.add(Proxyserver(), self)
        self.options.update(
            server=False,
            connection_strategy="lazy",
            rawtcp=False,
            websocket=True,
            http3=False,
            validate_inbound_headers=True,
            store_streamed_bodies=False,
            upstream_cert=False,
            ssl_insecure=False,
        )
        # It turns every log record of the process into a call through all addons.
        self.master._legacy_log_events.uninstall()
        self.shared.hooks = hook_table(
            {
                layer.NextLayerHook: self.next_layer,
                TlsClienthelloHook: self.tls_clienthello,
                TlsStartClientHook: self.tls_start_client,
                TlsStartServerHook: self.tls_start_server,
                VerdictHook: lambda waiting: waiting,
                HttpRequestHook: self.request,
            }
        )

    async def run(self) -> None:
        """The Master's life, and the sweeper of slow connections. Ends with `stop`."""
        sweeper = asyncio.create_task(self._sweep())
        try:
            await self.master.run()
        finally:
            sweeper.cancel()

    def stop(self) -> None:
        self.master.shutdown()

    # --- connections --------------------------------------------------------------------------------

    @property
    def connections(self) -> Collection[EgressConnection]:
        """Those that are open."""
        return self._connections.values()

    @property
    def failures(self) -> int:
        """Connections or requests refused because of a failure of our own."""
        return self.shared.failures

    def register(self, connection: EgressConnection) -> None:
        self._connections[connection.client.id] = connection

    def forget(self, connection: EgressConnection) -> None:
        """The connection is over, and its requests with it."""
        for call in tuple(connection.link.admission.calls):
            call.complete(Reason.CLIENT_GONE)
        self._connections.pop(connection.client.id, None)
        connection.link.leave_turns()
        self.ended += 1

    def abort_sessions(self, session_ids: Collection[str]) -> None:
        """Sessions, handles or credentials of theirs were revoked: end what depends on them, now (I5)."""
        by_id, sessions = self.exchange.state.sessions.by_id, frozenset(session_ids)
        over = {session_id for session_id in sessions if self.exchange.is_over(session_id)}
        origins = {by_id[session_id].origin for session_id in over if session_id in by_id}

        def check(connection: EgressConnection) -> None:
            if connection.link.admission.is_revoked(sessions, over, origins):
                connection.link.ending.abort(Reason.SESSION_REVOKED)

        self._each(check)

    def abort_all(self, reason: Reason) -> None:
        """End every connection, as the daemon stops."""
        for connection in tuple(self._connections.values()):
            connection.link.ending.abort(reason)

    def _each(self, check: Callable[[EgressConnection], None]) -> None:
        """`check` every connection. A check that fails ends its connection (I3) and spares no other one."""
        for connection in tuple(self._connections.values()):
            try:
                check(connection)
            except Exception:
                logger.exception("a connection could not be checked")
                self.shared.failed_closed()
                connection.link.ending.cut()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = time.monotonic()
            self._each(partial(self._check, now=now))

    def _check(self, connection: EgressConnection, now: float) -> None:
        link = connection.link
        if not link.admission.calls:
            if (overdue := link.deadlines.overdue(now)) is not None:
                link.ending.abort(overdue)
        elif link.deadlines.is_stalled(now):
            connection.fail(Deny(Reason.UPSTREAM_TIMEOUT, "nothing moved for too long"))
        elif (lapsed := link.admission.lapsed()) is not None:
            link.ending.abort(lapsed)

    # --- hooks --------------------------------------------------------------------------------------

    def _link(self, client_id: str) -> Link:
        return self._connections[client_id].link

    def next_layer(self, next_: layer.NextLayer) -> None:
        link = self._link(next_.context.client.id)
        chosen = next_layer(next_.context, next_.data_client(), link)
        if isinstance(chosen, Reason):
            link.admission.refuse_connection(Deny(chosen, "neither HTTP nor TLS where it may be"))
            link.ending.abort(chosen)
        else:
            next_.layer = chosen

    def tls_clienthello(self, data: tls.ClientHelloData) -> None:
        self._link(data.context.client.id).handshakes.check_name(data.client_hello)

    def tls_start_client(self, data: tls.TlsData) -> None:
        self._link(data.context.client.id).handshakes.start_client(data)

    def tls_start_server(self, data: tls.TlsData) -> None:
        self._link(data.context.client.id).handshakes.start_server(data)

    def request(self, flow: EgressFlow) -> Waiting:
        """Ask for the verdict on a whole body, for a request whose credential is injected into it."""
        call = flow.call
        if call is None or call.need is None:
            return None
        return self.exchange.receive_body(call, flow.request.raw_content or b"")
