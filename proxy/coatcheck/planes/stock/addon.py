"""The compatibility mode's addon. mitmproxy forwards when a hook raises, so each one denies first (I3)."""

import asyncio
import logging
import shlex
import sys
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from mitmproxy import connection, ctx, dns, http, tcp, tls, udp
from mitmproxy.addonmanager import Loader
from mitmproxy.flow import Error
from mitmproxy.net.http.http1 import expected_http_body_size
from mitmproxy.proxy import server_hooks
from mitmproxy.tools.dump import DumpMaster

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.host import HostRefused, canonical_host
from coatcheck.decision.message import Destination, Peer
from coatcheck.decision.response import Framing
from coatcheck.decision.verdict import Inject
from coatcheck.planes.mitm.adaptations import adapt_mitmproxy
from coatcheck.planes.mitm.destination import Route, destination_of, tunnel_target
from coatcheck.planes.mitm.refusal import refusal
from coatcheck.planes.mitm.translate import apply_edits, request_head, response_head, set_response_headers
from coatcheck.planes.origins.proxy_authorization import ClientProof
from coatcheck.planes.stock.forwarding import Forwarding, abort
from coatcheck.planes.stock.options import notice, refuse_to_start, unmet
from coatcheck.planes.stock.session import StockSession
from coatcheck.planes.upstream.upstream import UpstreamRefused
from coatcheck.request.call import Call
from coatcheck.request.exchange import Waiting
from coatcheck.settings import daemon as settings

logger = logging.getLogger(__name__)

ANSWERED_BODY = 1_048_576
"""mitmproxy reads a refused request's whole body into memory before it answers. Above this, or where the
length is not known, the connection is reset instead."""
DNS_PORTS = (53, 5353)
"""mitmproxy speaks DNS in tunnels to these, past all HTTP checks."""


class _Link:
    """What is known of one client connection."""

    def __init__(self, client: connection.Client) -> None:
        self.proof = ClientProof(Peer("mitmdump", ()))
        self.route = Route(client, self.proof)
        self.allowed: set[tuple[str, int]] = set()
        """Where its requests may go; a tunnel's target alone allows no connection yet."""
        self.screened: dict[str, frozenset[str]] = {}
        """By id of an upstream connection: the addresses that it may lead to."""


class StockAddon:
    """Translates between a stock mitmproxy and `exchange`, and decides nothing itself."""

    def __init__(self, script: Path) -> None:
        self._script = script
        self._session: StockSession | None = None
        self._links: dict[str, _Link] = {}
        self._forwarded: WeakKeyDictionary[http.HTTPFlow, Forwarding] = WeakKeyDictionary()
        self._refusals: WeakKeyDictionary[http.HTTPFlow, http.Response] = WeakKeyDictionary()
        self._renewal: asyncio.Task[None] | None = None

    # --- start and end ------------------------------------------------------------------------------

    def load(self, loader: Loader) -> None:
        loader.add_option("coatcheck_policy", str, "", "Coatcheck: the policy file.")
        loader.add_option("coatcheck_state_dir", str, "", "Coatcheck: keys, sessions, audit log.")
        loader.add_option("coatcheck_session_file", str, "", "Coatcheck: where to put clients' variables.")
        loader.add_option("coatcheck_accept_reduced", bool, False, "Coatcheck: inject all the same.")

    def configure(self, updated: set[str]) -> None:
        """Starts, or ends mitmdump; checks again whenever an option changes."""
        found = {name: getattr(ctx.options, name) for name in ctx.options.keys()}  # noqa: SIM118 - no mapping
        problems = unmet(found, ctx.options.scripts, self._script)
        if not isinstance(ctx.master, DumpMaster):
            problems.append("use mitmdump  (mitmproxy and mitmweb keep and replay requests)")
        if not ctx.options.coatcheck_policy:
            problems.append("--set coatcheck_policy=FILE  (without a policy nothing is allowed)")
        if problems:
            refuse_to_start(problems, self._script)
        if self._session is None:
            try:
                wanted: dict[str, Any] = {"policy": Path(ctx.options.coatcheck_policy)}
                if ctx.options.coatcheck_state_dir:
                    wanted["state_dir"] = Path(ctx.options.coatcheck_state_dir)
                self._session = StockSession(settings.load(**wanted))
            except Exception as error:  # noqa: BLE001 - whatever it is, mitmdump must not run without us
                refuse_to_start([str(error)], self._script)

    def running(self) -> None:
        assert self._session is not None
        adapt_mitmproxy()
        # From here on mitmproxy's messages are about peers, and quote what they send (I1).
        logging.getLogger("mitmproxy.proxy").setLevel(logging.CRITICAL)
        file = ctx.options.coatcheck_session_file or self._session.settings.state_dir / "session.env"
        ca = Path(ctx.options.confdir).expanduser() / "mitmproxy-ca-cert.pem"
        try:
            host = ctx.options.listen_host or "127.0.0.1"
            self._session.write_environment(Path(file), host, ctx.options.listen_port or 8080, ca)
        except Exception as error:  # noqa: BLE001
            refuse_to_start([str(error)], self._script)
        self._renewal = asyncio.create_task(self._session.renew())
        sys.stderr.write(notice(injects=ctx.options.coatcheck_accept_reduced))
        sys.stderr.write(f"coatcheck: for clients: source {shlex.quote(str(file))}\n")
        sys.stderr.flush()

    async def done(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
        if self._session is not None:
            await self._session.close()

    # --- connections --------------------------------------------------------------------------------

    def client_connected(self, client: connection.Client) -> None:
        self._links[client.id] = _Link(client)

    def client_disconnected(self, client: connection.Client) -> None:
        self._links.pop(client.id, None)

    def http_connect(self, flow: http.HTTPFlow) -> None:
        flow.response = refusal(Deny(Reason.INTERNAL_ERROR), "-")
        denial = self._connect(self._links[flow.client_conn.id], flow.request)
        flow.response = refusal(denial, "-") if denial is not None else None

    def _connect(self, link: _Link, request: http.Request) -> Deny | None:
        assert self._session is not None
        link.proof.present(request, None, 0.0)
        target = tunnel_target(request)
        if isinstance(target, Deny):
            return target
        allowed = self._session.exchange.connect(link.route.peer, *target)
        if isinstance(allowed, Call) and allowed.denial is not None:
            return allowed.denial
        if isinstance(allowed, Call) or target[1] in DNS_PORTS:
            denial = Deny(Reason.PLANE_CANNOT, "unopened tunnels and DNS do not pass a stock mitmdump")
            if isinstance(allowed, Call):
                self._session.exchange.late_refusal(allowed, denial)
                allowed.complete(denial.reason)
            return denial
        link.route.tunnel = target
        return None

    def tls_clienthello(self, data: tls.ClientHelloData) -> None:
        """SNI and CONNECT target must be one name (I7); a hook cannot refuse, so the connection is reset."""
        client = data.context.client
        try:
            tunnel = self._links[client.id].route.tunnel
            same = tunnel is not None and client.sni is not None and canonical_host(client.sni) == tunnel[0]
        except (HostRefused, KeyError):
            same = False
        if not same:
            abort(client.id)

    async def server_connect(self, data: server_hooks.ServerConnectionHookData) -> None:
        data.server.error = "refused"
        assert self._session is not None
        assert data.server.address is not None
        link = self._links[data.client.id]
        host, port = data.server.address[:2]
        if (host, port) not in link.allowed:
            return
        try:
            found = await self._session.upstream.addresses(host, port)
        except UpstreamRefused as refused:
            logger.warning("%s", refused)
            return
        if f"{host}:{port}" in self._session.settings.connect_to:
            data.server.address = found[0]
        link.screened[data.server.id] = frozenset(address for address, _ in found)
        data.server.error = None

    def server_connected(self, data: server_hooks.ServerConnectionHookData) -> None:
        """mitmproxy resolved the name once more. If that led elsewhere, no byte is sent (I2)."""
        link = self._links.get(data.client.id)
        peer = data.server.peername
        if link is None or peer is None or peer[0] not in link.screened.pop(data.server.id, frozenset()):
            abort(data.client.id)

    # --- requests -----------------------------------------------------------------------------------

    async def requestheaders(self, flow: http.HTTPFlow) -> None:
        if flow.error is not None:
            return  # mitmproxy refuses it already
        flow.error = _killed()
        try:
            denial, number = await self._judge(flow)
        except Exception:
            logger.exception("a request was refused: the decision failed")
            denial, number = Deny(Reason.INTERNAL_ERROR), "-"
        if denial is not None:
            self._refuse(flow, denial, number)
        else:
            flow.error = None

    async def _judge(self, flow: http.HTTPFlow) -> tuple[Deny | None, str]:
        assert self._session is not None
        exchange, request = self._session.exchange, flow.request
        link = self._links[flow.client_conn.id]
        if link.route.tunnel is None:
            link.proof.present(request, None, 0.0)
            # mitmproxy has taken the target apart; `destination_of` wants to read it itself.
            host = f"[{request.data.host}]" if ":" in request.data.host else request.data.host
            request.data.authority = f"{host}:{request.data.port}".encode()
        size = expected_http_body_size(request)
        head = request_head(request, end_stream=size == 0)
        found = destination_of(request, head, link.route, lambda name: None)
        if not isinstance(found, Deny) and head.get("upgrade") is not None:
            found = Deny(Reason.PLANE_CANNOT, "protocol switches do not pass a stock mitmdump")
        if isinstance(found, Deny):
            nowhere = Destination("https", *(link.route.tunnel or ("", 0)))
            return found, exchange.refused(link.route.peer, nowhere, head, found).request_id
        destination, head = found
        call, waiting = exchange.receive(link.route.peer, destination, head, http2=False)
        forwarding = self._forwarded[flow] = Forwarding(flow, call)
        await self._wait_for_secrets(call, waiting, size)
        if call.denial is None:
            link.allowed.add((destination.host, destination.port))
            request.data.host, request.data.port = destination.host, destination.port
            request.data.scheme = destination.scheme.encode()
            forwarding.buffered = bool(call.body_limit)
            if not forwarding.buffered:
                self._commit(flow, forwarding, b"")
                request.stream = forwarding.upload if size != 0 and call.denial is None else False
        return call.denial, call.request_id

    async def _wait_for_secrets(self, call: Call, waiting: Waiting, size: int | None) -> None:
        """Wait for secrets, if they may be used; refuse what this mode cannot do."""
        assert self._session is not None
        denial = None
        if (isinstance(call.verdict, Inject) or call.need) and not ctx.options.coatcheck_accept_reduced:
            detail = "nothing is injected in a stock mitmdump without coatcheck_accept_reduced=true"
            denial = Deny(Reason.PLANE_CANNOT, detail)
        elif call.body_limit and (size is None or not 0 <= size <= call.body_limit):
            denial = Deny(Reason.PLANE_CANNOT, "a body of unknown or too great length cannot be collected")
        if denial is None:
            if waiting is not None:
                await waiting()
            return
        if call.denial is None:
            self._session.exchange.late_refusal(call, denial)

    def _commit(self, flow: http.HTTPFlow, forwarding: Forwarding, body: bytes) -> None:
        """Revalidate and inject the secrets: mitmproxy connects only after this (see NOT_HELD, I5)."""
        assert self._session is not None
        call = forwarding.call
        edits = call.commit(body)
        if isinstance(edits, Deny):
            self._session.exchange.late_refusal(call, edits)
            return
        forwarding.remember_head()
        apply_edits(flow.request, edits)
        if edits.body is not None:
            flow.request.data.content = edits.body
        if f"{call.destination.host}:{call.destination.port}" in self._session.settings.connect_to:
            # mitmproxy looks for kept connections by the address that was asked for, finds none, and would
            # wait for ever for the sixth that it may open to the one that was dialled.
            flow.request.headers["connection"] = "close"

    async def request(self, flow: http.HTTPFlow) -> None:
        forwarding = self._forwarded.get(flow)
        if forwarding is None or not forwarding.buffered or flow.response is not None:
            return
        flow.error = _killed()
        assert self._session is not None
        call, body = forwarding.call, flow.request.raw_content or b""
        try:
            waiting = self._session.exchange.receive_body(call, body) if call.need else None
            if waiting is not None:
                await waiting()
            if call.denial is None:
                self._commit(flow, forwarding, body)
            denial = call.denial
        except Exception:
            logger.exception("a request was refused: the decision on its body failed")
            denial = Deny(Reason.INTERNAL_ERROR)
        if denial is not None:
            self._refuse(flow, denial, call.request_id)
        else:
            flow.error = None

    def _refuse(self, flow: http.HTTPFlow, denial: Deny, number: str) -> None:
        forwarding = self._forwarded.pop(flow, None)
        if forwarding is not None:
            forwarding.restore_head()
            forwarding.call.complete(denial.reason)
        size = expected_http_body_size(flow.request)
        flow.request.stream = False
        if size is not None and 0 <= size <= ANSWERED_BODY:
            flow.response = self._refusals[flow] = refusal(denial, number, flow.request)
            flow.error = None

    # --- answers ------------------------------------------------------------------------------------

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        if flow.response is not None and flow.response is self._refusals.get(flow):
            return
        flow.error = _killed()
        forwarding = self._forwarded.get(flow)
        assert forwarding is not None
        assert flow.response is not None
        forwarding.restore_head()
        plan = forwarding.call.respond(response_head(flow.response), end_stream=False)
        if isinstance(plan, Deny) or flow.response.status_code == 101:
            forwarding.end(plan.reason if isinstance(plan, Deny) else Reason.UPSTREAM_RESPONSE_REFUSED)
            return
        set_response_headers(
            flow.response,
            plan,
            end_stream=plan.framing is Framing.NONE,
            to_h2=False,
            to_http10=flow.request.http_version == "HTTP/1.0",
        )
        flow.response.stream = forwarding.download
        flow.error = None

    def response(self, flow: http.HTTPFlow) -> None:
        forwarding = self._forwarded.pop(flow, None)
        if forwarding is not None:
            forwarding.call.complete(None)

    def error(self, flow: http.HTTPFlow) -> None:
        forwarding = self._forwarded.pop(flow, None)
        if forwarding is not None:
            forwarding.restore_head()
            forwarding.call.complete(Reason.UPSTREAM_UNREACHABLE)

    # --- what must never happen ---------------------------------------------------------------------

    def tcp_start(self, flow: tcp.TCPFlow) -> None:
        abort(flow.client_conn.id)

    def udp_start(self, flow: udp.UDPFlow) -> None:
        abort(flow.client_conn.id)

    def dns_request(self, flow: dns.DNSFlow) -> None:
        flow.error = _killed()
        abort(flow.client_conn.id)

    def websocket_start(self, flow: http.HTTPFlow) -> None:
        abort(flow.client_conn.id)


def _killed() -> Error:
    return Error(Error.KILLED_MESSAGE)
