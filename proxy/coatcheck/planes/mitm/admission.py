"""Asks for the verdicts on one connection's requests, and remembers what was allowed and what was refused.

The decisions are `exchange`'s. Two facts are established here first: who asks, and where a request goes.
"""

from mitmproxy import http
from mitmproxy.connection import Client

from coatcheck.certificates.authority import CertificateError
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Destination, Origin, Peer, RequestHead
from coatcheck.decision.policy import Policy, rules_for_host
from coatcheck.decision.session import Session
from coatcheck.planes.mitm.deadlines import Deadlines
from coatcheck.planes.mitm.destination import Route, destination_of, tunnel_target, with_one_host
from coatcheck.planes.mitm.flow import EgressFlow
from coatcheck.planes.mitm.shared import Shared
from coatcheck.planes.mitm.translate import request_head
from coatcheck.planes.origins.proxy_authorization import ClientProof
from coatcheck.request.call import Call
from coatcheck.request.exchange import Waiting


class Admission:
    """Belongs to one client connection."""

    def __init__(self, shared: Shared, client: Client, peer: Peer, deadlines: Deadlines) -> None:
        self._shared = shared
        self._exchange = shared.exchange
        self._client = client
        self._deadlines = deadlines
        self._proof = ClientProof(peer)
        self.route = Route(client, self._proof)
        self._session = ""
        """The tunnel's."""
        self.session_id = ""
        """Whose the latest request was."""
        self.opaque: Call | None = None
        """Set where the policy lets this tunnel's TLS through unopened."""
        self.refusal: Call | None = None
        """The refusal being answered, which is in the audit log already."""
        self.calls: set[Call] = set()
        """Requests that have not ended."""
        self.refused_inside = False
        """The tunnel's host is refused, which is told in the tunnel: nothing leaves it."""

    @property
    def peer(self) -> Peer:
        return self._proof.peer

    # --- tunnels ------------------------------------------------------------------------------------

    def connect(self, flow: http.HTTPFlow) -> Deny | None:
        """CONNECT: allowed hosts and ports only, before anything is resolved or minted."""
        self._present(flow.request)
        target = tunnel_target(flow.request)
        if isinstance(target, Deny):
            return target
        denial = self.open_tunnel(target)
        return None if denial is not None and self._may_tell_inside(denial, target) else denial

    def _may_tell_inside(self, denial: Deny, target: tuple[str, int]) -> bool:
        """Whether a client could read the refusal in the tunnel: there is a session to count it against, and
        a certificate for the name, from a cache that no allowed host is in."""
        refusal = self.refusal
        if not self._shared.refuse_inside_tls or denial.reason is not Reason.HOST_NOT_ALLOWED:
            return False
        if refusal is None or refusal.session is None:
            return False
        try:
            self._shared.signing_ca.tls(self.peer, refused=True).prepare(target[0])
        except CertificateError:
            return False
        self.refused_inside = True
        self.route.tunnel = target
        self.session_id = refusal.session.id
        self._deadlines.await_hello()
        return True

    def await_refused_head(self) -> None:
        """The ClientHello is here; the head comes after the handshake."""
        self._deadlines.await_head()

    def open_tunnel(self, target: tuple[str, int]) -> Deny | None:
        """Whether `target`, which is canonical, may be tunnelled to; a refusal is `refusal`, too."""
        allowed = self._exchange.connect(self.peer, *target)
        if isinstance(allowed, Call) and allowed.denial is not None:
            self.refusal = allowed
            return allowed.denial
        if isinstance(allowed, Call):
            self.opaque = allowed
            self.calls.add(allowed)
            allowed.on_end(self.calls.discard)
        elif (no_certificate := self._no_certificate(target)) is not None:
            return no_certificate
        session = allowed.session if isinstance(allowed, Call) else allowed
        self.route.tunnel, self._session = target, session.id if session else ""
        self.session_id = self._session or self.session_id
        self._deadlines.await_head()
        return None

    def _no_certificate(self, target: tuple[str, int]) -> Deny | None:
        """Without a certificate no refusal could be sent inside the tunnel, so CONNECT itself is refused."""
        try:
            self._shared.signing_ca.tls(self.peer, refused=self.refusal is not None).prepare(target[0])
        except CertificateError as error:
            denial = Deny(Reason.INTERNAL_ERROR, f"no certificate: {error}")
            head = RequestHead("CONNECT", "", ())
            self.refusal = self._exchange.refused(self.peer, Destination("https", *target), head, denial)
            return denial
        return None

    # --- requests -----------------------------------------------------------------------------------

    def requestheaders(self, flow: EgressFlow) -> Waiting:
        """The decision on one request. Whatever fails in here leaves no Call, which is a Deny."""
        self._deadlines.head_is_read()
        route = self.route
        if self.refusal is not None and (self.peer.original is not None or self.refused_inside):
            head = request_head(flow.request, end_stream=not flow.request.stream)
            flow.call = self.refusal  # the tunnel's TLS was completed to send it
            if self.refused_inside and self._exchange.shows_handle(head):
                flow.call = self._exchange.refused_with_handle(self.refusal, head)
            return None
        if route.tunnel is None and self.peer.original is None:
            self._present(flow.request)
        if self._proof.expires_at is not None:
            self._proof.expire(self._exchange.state.clock.now().wall)
        head = request_head(flow.request, end_stream=not flow.request.stream)
        found = destination_of(flow.request, head, route, self._reverse_host)
        if isinstance(found, Deny):
            flow.call = self._exchange.refused(self.peer, self._asked_for(), head, found)
            return None
        destination, head = found[0], with_one_host(*found)
        http2 = self._client.alpn == b"h2"
        call, waiting = self._exchange.receive(self.peer, destination, head, http2=http2)
        flow.call = call
        if call.session is not None:
            self.session_id = call.session.id
        self.calls.add(call)
        call.on_end(self.calls.discard)
        request = flow.request
        request.data.host, request.data.port = destination.host, destination.port
        request.data.scheme = destination.scheme.encode()
        request.data.path = head.target.encode("latin-1")
        if request.data.authority:
            request.data.authority = destination.authority.encode()
        if not http2 or "host" in request.headers:
            request.headers["host"] = destination.authority
        return waiting

    def _present(self, request: http.Request) -> None:
        self._proof.present(request, self._shared.tokens, self._exchange.state.clock.now().wall)

    def _reverse_host(self, name: str) -> str | None:
        """`http://proxy/NAME/…` for clients that take a base URL: NAME is one of the session's
        credentials, and its first exact host is where the request goes."""
        session, policy = self._session_and_policy()
        credential = policy.credentials.get(name) if policy else None
        if session is None or credential is None or name not in session.credentials:
            return None
        return next((host.suffix for host in credential.hosts if not host.wildcard), None)

    def wants_http2(self, host: str) -> bool:
        """HTTP/2 only where a rule asks for it (gRPC): it costs more, and h2 to h1 loses keep-alive."""
        _, policy = self._session_and_policy()
        return policy is not None and any(rule.http2 for rule in rules_for_host(policy, host))

    def _session_and_policy(self) -> tuple[Session | None, Policy | None]:
        session = self._exchange.session_of(self.peer)
        return session, self._exchange.state.policies.get(session.policy) if session else None

    # --- refusals and revocations -------------------------------------------------------------------

    def refused(self, flow: http.HTTPFlow, call: Call | None, denial: Deny) -> str:
        """Record a refusal that is about to be answered, unless its decision was recorded already.
        Returns the request id."""
        if call is not None:
            if call.denial is None:
                self._exchange.late_refusal(call, denial)
            call.complete(denial.reason)
            return call.request_id
        if self.refusal is not None:
            recorded = self.refusal
            # Else all of the connection is refused, not one CONNECT.
            if self.peer.original is None and not self.refused_inside:
                self.refusal = None
            return recorded.request_id
        head = RequestHead(flow.request.method, "", ())
        return self._exchange.refused(self.peer, self._asked_for(), head, denial).request_id

    def refuse_connection(self, denial: Deny) -> str:
        """Record what was refused before there was a request that could be read whole. Returns the request
        id."""
        for call in tuple(self.calls):
            if not call.told:  # it waits for the store, or for somebody's yes: its own record comes first
                self._exchange.late_refusal(call, denial)
            call.complete(denial.reason)
        head = RequestHead("-", "", ())
        self.refusal = self._exchange.refused(self.peer, self._asked_for(), head, denial)
        return self.refusal.request_id

    def refuse_tunnel(self, call: Call, denial: Deny) -> None:
        """Record that a tunnel that was allowed is refused before its first upstream byte."""
        self._exchange.late_refusal(call, denial)

    def record_failure(self, denial: Deny) -> str:
        """Record, as every refusal, that the connection failed, before the client is told. Returns the
        request id."""
        for call in self.calls:
            if call.denial is None:
                self._exchange.late_refusal(call, denial)
        if self.calls:  # HTTP/1: one; of several any will do, as they failed together
            return next(iter(self.calls)).request_id
        return self.refuse_connection(denial)

    def _asked_for(self) -> Destination:
        """As much of the destination as is known before a request could be read: the tunnel's target."""
        return Destination("https", *(self.route.tunnel or ("", 0)))

    def is_revoked(self, sessions: frozenset[str], over: set[str], origins: set[Origin]) -> bool:
        """Whether something on this connection depends on what was revoked: a request of one of `sessions`
        that is permitted no more, the tunnel of a session that is `over`, or one of their `origins`."""
        if not origins.isdisjoint(self.peer.origins):
            return True  # also with half a request, which would be the next session's of this origin
        calls = [call for call in self.calls if call.session is not None and call.session.id in sessions]
        idle_tunnel = self._session in over and not self.calls
        return any(call.permitted() is not None for call in calls) or idle_tunnel

    def lapsed(self) -> Reason | None:
        """Why a committed request is permitted no more. Nothing announces that a lease has lapsed: without
        this check, streams that carry no chunk would live on."""
        for call in tuple(self.calls):
            denial = call.permitted() if call.committed else None
            if denial is not None:
                return denial.reason
        return None
