"""The mitmproxy plane: an addon on an embedded Master that translates, and never decides.

The Master carries a short, explicit list of addons: `Proxyserver` (its options only; it listens
nowhere) and this plane. None of the thirty default addons is loaded: some of them would record flows
after substitution (DESIGN 8).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from functools import partial
from weakref import WeakKeyDictionary

from mitmproxy import http, options, tls
from mitmproxy.connection import Connection, Server
from mitmproxy.proxy import layer
from mitmproxy.proxy.layers.http import HttpRequestHook
from mitmproxy.proxy.layers.tls import TlsClienthelloHook, TlsStartClientHook, TlsStartServerHook
from OpenSSL import SSL

from coatcheck.certificates.authority import CertificateError
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.host import HostRefused
from coatcheck.decision.message import Destination, Origin, OriginClass, RequestHead
from coatcheck.decision.policy import rules_for_host
from coatcheck.planes.listeners.client_hello import server_name
from coatcheck.planes.mitm.adaptations import adapt_mitmproxy
from coatcheck.planes.mitm.connection import EgressConnection
from coatcheck.planes.mitm.destination import destination_of, tunnel_target
from coatcheck.planes.mitm.flow import EgressFlow
from coatcheck.planes.mitm.hooks import Hooks, VerdictHook, hook_table
from coatcheck.planes.mitm.layers import next_layer
from coatcheck.planes.mitm.master import Master, Proxyserver
from coatcheck.planes.mitm.session_ca import SessionCas
from coatcheck.planes.mitm.tls import ClientTls, UpstreamTls
from coatcheck.planes.mitm.translate import request_head
from coatcheck.planes.origins.platform_token import PlatformTokens
from coatcheck.planes.origins.proxy_authorization import check_proof, present
from coatcheck.planes.upstream.upstream import Upstream
from coatcheck.request.call import Call
from coatcheck.request.exchange import Exchange, Waiting

logger = logging.getLogger(__name__)

HEAD_SECONDS = 30.0
"""How long a request head or a TLS handshake may take (slow headers). curl and SDKs need milliseconds."""
IDLE_SECONDS = 300.0
"""How long a kept connection without requests is kept. Longer than clients keep theirs."""
ANSWER_SECONDS = 900.0
"""How long an open request may pass without a byte in either direction; models think for minutes."""
SWEEP_SECONDS = 1.0


class MitmPlane:
    """Holds what all connections share. Belongs to one event loop."""

    def __init__(
        self,
        exchange: Exchange,
        upstream: Upstream,
        client_tls: ClientTls,
        upstream_tls: UpstreamTls,
        tokens: PlatformTokens | None = None,
        session_cas: SessionCas | None = None,
    ) -> None:
        self.exchange = exchange
        self.tokens = tokens
        self.session_cas = session_cas
        self.upstream = upstream
        self.connections: set[EgressConnection] = set()
        self.turns = asyncio.Lock()
        """Of connections with more in hand than one turn takes (`turns`)."""
        self.failures = 0
        """Connections or requests refused because something of ours failed (fail-closed count)."""
        self.ended = 0
        """Client connections so far that are over."""
        self._client_tls = client_tls
        self._refusal_tls = client_tls.small()
        self._upstream_tls = upstream_tls
        self._tls: WeakKeyDictionary[Connection, tuple[str, bool, SSL.Connection]] = WeakKeyDictionary()
        self._links: dict[str, EgressConnection] = {}
        adapt_mitmproxy()
        # mitmproxy logs what peers send; ours are the words in which anything is told (I1). It also warns at
        # each start that an addon is missing whose work is done here.
        logging.getLogger("mitmproxy").setLevel(logging.CRITICAL)
        self.options = options.Options()
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
        # It turns every log record of the process into a call through all addons (notes 2.2).
        self.master._legacy_log_events.uninstall()
        self.hooks: Hooks = hook_table(
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

    def register(self, link: EgressConnection) -> None:
        self.connections.add(link)
        self._links[link.client.id] = link

    def forget(self, link: EgressConnection) -> None:
        for call in tuple(link.calls):
            call.complete(Reason.CLIENT_GONE)
        self.connections.discard(link)
        self._links.pop(link.client.id, None)
        self.ended += 1

    def abort_sessions(self, session_ids: Collection[str]) -> None:
        """Sessions, handles or credentials of theirs were revoked: end what depends on them, now (I5)."""
        by_id, sessions = self.exchange.state.sessions.by_id, frozenset(session_ids)
        over = {session_id for session_id in sessions if self.exchange.is_over(session_id)}
        origins = {by_id[session_id].origin for session_id in over if session_id in by_id}

        def look(link: EgressConnection) -> None:
            if not origins.isdisjoint(link.peer.origins):
                # Also one with half a request, which would be the next session's of this origin.
                link.abort(Reason.SESSION_REVOKED)
                return
            calls = [c for c in link.calls if c.session is not None and c.session.id in sessions]
            idle_tunnel = link.tunnel_session in over and not link.calls
            if any(call.permitted() is not None for call in calls) or idle_tunnel:
                link.abort(Reason.SESSION_REVOKED)

        self._each(look)

    def _each(self, look: Callable[[EgressConnection], None]) -> None:
        """`look` at every connection. What fails at one ends that one (I3) and keeps nobody from the rest."""
        for link in tuple(self.connections):
            try:
                look(link)
            except Exception:
                logger.exception("a connection could not be judged")
                self.failed_closed()
                link.cut()

    def failed_closed(self) -> None:
        self.failures += 1

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = time.monotonic()
            self._each(partial(self._check, now=now))

    def _check(self, link: EgressConnection, now: float) -> None:
        if not link.calls:
            if link.head_since is not None and now - link.head_since > HEAD_SECONDS:
                link.abort(Reason.FRAMING_REFUSED)
            elif now - link.last_activity > IDLE_SECONDS:
                link.abort(Reason.UPSTREAM_TIMEOUT)
            return
        if now - link.last_activity > ANSWER_SECONDS:
            link.fail(Deny(Reason.UPSTREAM_TIMEOUT, "nothing moved for too long"))
            return
        # A lease that lapses calls nobody: streams that carry no chunk end here.
        for call in tuple(link.calls):
            denial = call.permitted() if call.committed else None
            if denial is not None:
                link.abort(denial.reason)
                return

    # --- hooks: layers and TLS ----------------------------------------------------------------------

    def next_layer(self, next_: layer.NextLayer) -> None:
        link = self._links[next_.context.client.id]
        chosen = next_layer(next_.context, next_.data_client(), link)
        if isinstance(chosen, Reason):
            self.refuse_connection(link, Deny(chosen, "neither HTTP nor TLS where it may be"))
            link.abort(chosen)
        else:
            next_.layer = chosen

    def tls_clienthello(self, data: tls.ClientHelloData) -> None:
        """SNI and CONNECT target must be one name (I7): domain fronting ends here, without a handshake."""
        link = self._links[data.context.client.id]
        host = link.tunnel[0] if link.tunnel else ""
        literal = host.replace(".", "").isdigit() or ":" in host
        detail = "the TLS server name differs from the CONNECT target"
        try:
            name = server_name(data.client_hello)
            same = name == host if name is not None else literal
            detail = detail if name is not None else "no TLS server name"
        except HostRefused as refused:
            same, detail = False, str(refused)
        if not same:
            self.refuse_connection(link, Deny(Reason.AUTHORITY_MISMATCH, detail, alarm=True))
            link.tls_refused = True

    def tls_start_client(self, data: tls.TlsData) -> None:
        """Without `ssl_conn` mitmproxy closes the connection before any byte of a handshake."""
        link = self._links[data.context.client.id]
        if link.tls_refused or link.tunnel is None:
            return
        host = link.tunnel[0]
        try:
            http2 = link.refusal is None and self._http2(link, host)
            data.ssl_conn = link.client_tls = self._tls_towards(link).connection(host, http2=http2)
        except CertificateError as error:
            if link.refusal is None:  # else it is recorded, and only cannot be told
                self.refuse_connection(link, Deny(Reason.INTERNAL_ERROR, f"no certificate: {error}"))

    def _tls_towards(self, link: EgressConnection) -> ClientTls:
        """With the session's own CA where it has one; never with the daemon's in its stead."""
        own = link.peer.listener if self.session_cas is not None else ""
        if self.session_cas is None or Origin(OriginClass.SOCKET, own) not in link.peer.origins:
            # Refused names are a sandbox's own words: they must not drive the fleet's from the cache.
            return self._client_tls if link.refusal is None else self._refusal_tls
        found = self.session_cas.tls(own)
        if found is None:
            raise CertificateError("the session's CA is gone with its session", "open a new session")
        return found

    def tls_start_server(self, data: tls.TlsData) -> None:
        """The name to verify is the destination that policy allowed; ALPN is policy's, too."""
        link = self._links[data.context.client.id]
        server = data.conn
        assert isinstance(server, Server)
        assert server.address is not None
        host = server.address[0]
        http2 = self._http2(link, host)
        data.ssl_conn = self._upstream_tls.connection(server, host, http2=http2)
        self._tls[server] = (host, http2, data.ssl_conn)

    def upstream_answered(self, server: Server) -> None:
        """TLS 1.3 sends its tickets with the first data: keep one for the next connection."""
        entry = self._tls.pop(server, None)
        if entry is not None:
            self._upstream_tls.remember(*entry)

    def upstream_closed(self, server: Connection) -> None:
        entry = self._tls.pop(server, None)
        if entry is not None and server.error:
            self._upstream_tls.forget(entry[0])

    def _http2(self, link: EgressConnection, host: str) -> bool:
        """HTTP/2 only where a rule asks for it (gRPC): it costs more, and h2 to h1 loses keep-alive."""
        session = self.exchange.session_of(link.peer)
        policy = self.exchange.state.policies.get(session.policy) if session else None
        return policy is not None and any(rule.http2 for rule in rules_for_host(policy, host))

    # --- hooks: requests ----------------------------------------------------------------------------

    def connect(self, link: EgressConnection, flow: http.HTTPFlow) -> Deny | None:
        """CONNECT: allowed hosts and ports only, before anything is resolved or minted."""
        present(link, flow.request, self.tokens, self.exchange.state.clock.now().wall)
        target = tunnel_target(flow.request)
        return target if isinstance(target, Deny) else self.open_tunnel(link, target)

    def open_tunnel(self, link: EgressConnection, target: tuple[str, int]) -> Deny | None:
        """Whether `target`, which is canonical, may be tunnelled to; a refusal is `link.refusal`, too."""
        allowed = self.exchange.connect(link.peer, *target)
        if isinstance(allowed, Call) and allowed.denial is not None:
            link.refusal = allowed
            return allowed.denial
        if isinstance(allowed, Call):
            link.opaque = allowed
            link.calls.add(allowed)
            allowed.on_end(link.calls.discard)
        elif (no_certificate := self._no_certificate(link, target)) is not None:
            return no_certificate
        session = allowed.session if isinstance(allowed, Call) else allowed
        link.tunnel, link.tunnel_session = target, session.id if session else ""
        link.await_head()
        return None

    def _no_certificate(self, link: EgressConnection, target: tuple[str, int]) -> Deny | None:
        """Inside of the tunnel nothing could be told to a client that gets no certificate."""
        try:
            self._tls_towards(link).prepare(target[0])
        except CertificateError as error:
            denial = Deny(Reason.INTERNAL_ERROR, f"no certificate: {error}")
            head = RequestHead("CONNECT", "", ())
            link.refusal = self.exchange.refused(link.peer, Destination("https", *target), head, denial)
            return denial
        return None

    def requestheaders(self, flow: EgressFlow) -> Waiting:
        """The decision on one request. Whatever fails in here leaves no Call, which is a Deny."""
        link = self._links[flow.client_conn.id]
        link.head_since = None
        if link.peer.original is not None and link.refusal is not None:
            flow.call = link.refusal  # a transparent connection: its TLS was completed to say so
            return None
        if link.tunnel is None and link.peer.original is None:
            present(link, flow.request, self.tokens, self.exchange.state.clock.now().wall)
        if link.proof_until is not None:
            check_proof(link, self.exchange.state.clock.now().wall)
        head = request_head(flow.request, end_stream=not flow.request.stream)
        found = destination_of(flow.request, head, link, self._reverse_host)
        if isinstance(found, Deny):
            flow.call = self.exchange.refused(link.peer, _asked_for(link), head, found)
            return None
        destination, head = found
        call, waiting = self.exchange.receive(link.peer, destination, head, http2=link.client.alpn == b"h2")
        flow.call = call
        link.calls.add(call)
        call.on_end(link.calls.discard)
        request = flow.request
        request.data.host, request.data.port = destination.host, destination.port
        request.data.scheme = destination.scheme.encode()
        request.data.path = head.target.encode("latin-1")
        if link.tunnel is None and request.headers.get("host") != head.get("host"):
            request.headers["host"] = destination.host  # reverse mode: the name that the client never saw
        return waiting

    def request(self, flow: EgressFlow) -> Waiting:
        """The whole body of a request whose credential stands in it."""
        call = flow.call
        if call is None or call.need is None:
            return None
        return self.exchange.receive_body(call, flow.request.raw_content or b"")

    def _reverse_host(self, link: EgressConnection, name: str) -> str | None:
        """`http://proxy/NAME/…` for clients that take a base URL: NAME is one of the session's
        credentials, and its first exact host is where the request goes."""
        session = self.exchange.session_of(link.peer)
        policy = self.exchange.state.policies.get(session.policy) if session else None
        credential = policy.credentials.get(name) if policy else None
        if session is None or credential is None or name not in session.credentials:
            return None
        return next((host.suffix for host in credential.hosts if not host.wildcard), None)

    # --- refusals -----------------------------------------------------------------------------------

    def refused(self, link: EgressConnection, flow: http.HTTPFlow, call: Call | None, denial: Deny) -> str:
        """Record a refusal that is about to be answered, unless its decision was recorded already."""
        if call is not None:
            if call.denial is None:
                self.exchange.late_refusal(call, denial)
            call.complete(denial.reason)
            return call.request_id
        if link.refusal is not None:
            recorded = link.refusal
            if link.peer.original is None:  # else all of the connection is refused, not one CONNECT
                link.refusal = None
            return recorded.request_id
        head = RequestHead(flow.request.method, "", ())
        return self.exchange.refused(link.peer, _asked_for(link), head, denial).request_id

    def refuse_connection(self, link: EgressConnection, denial: Deny) -> str:
        """Record what was refused before there was a request that could be read whole; the request id."""
        for call in tuple(link.calls):
            call.complete(denial.reason)
        head = RequestHead("-", "", ())
        link.refusal = self.exchange.refused(link.peer, _asked_for(link), head, denial)
        return link.refusal.request_id


def _asked_for(link: EgressConnection) -> Destination:
    """As much of the destination as is known before a request could be read: the tunnel's target."""
    return Destination("https", *(link.tunnel or ("", 0)))
