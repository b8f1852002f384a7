"""What planes/http1, planes/destination and decision/head make of bytes: the requests that would go on."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from mitmproxy import http, options
from mitmproxy.connection import Client, ConnectionState
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers import http as mitm_http

from coatcheck.decision.denial import Deny
from coatcheck.decision.head import check_head
from coatcheck.decision.message import Peer
from coatcheck.planes.mitm.deadlines import Deadlines
from coatcheck.planes.mitm.destination import Route, destination_of, tunnel_target
from coatcheck.planes.mitm.http1 import BoundedHttp1Server
from coatcheck.planes.mitm.parsers import Parsers
from coatcheck.planes.mitm.translate import request_head
from coatcheck.planes.origins.proxy_authorization import ClientProof
from tests.fuzz.strict_http1 import Reading

HOST = "a.example"
MAX_REQUESTS = 8
_OPTIONS = options.Options()


class Link:
    """What the parser needs of its connection, in a tunnel to HOST or outside of any."""

    def __init__(self, client: Client, *, tunnelled: bool) -> None:
        self.route = Route(client, ClientProof(Peer("fuzz", ())))
        self.route.tunnel = (HOST, 443) if tunnelled else None
        self.refused = False
        self.parsers = Parsers()
        self.deadlines = Deadlines()
        self.admission = SimpleNamespace(refuse_connection=self._refuse, calls=set())
        self.ending = SimpleNamespace(abort=self._abort)
        self.time_slice = SimpleNamespace(is_over=lambda _: False)

    def _refuse(self, *_: object) -> str:
        self.refused = True
        return "req_fuzz"

    def _abort(self, _: object) -> None:
        self.refused = True


@dataclass
class Parsed:
    """How far it came."""

    complete: list[Reading] = field(default_factory=list)
    """Requests that were read to their ends and would have gone on."""
    begun: list[Reading] = field(default_factory=list)
    """Those whose head was accepted, `complete` or not; the body is as far as it came."""
    over: bool = False
    """Refused, or ended: nothing that follows counts."""


def parse(pieces: list[bytes], *, tunnelled: bool = True) -> Parsed:
    """Each piece as it arrives; every request is answered, so that the next one is read."""
    client = Client(
        peername=("127.0.0.1", 1), sockname=("127.0.0.1", 2), timestamp_start=0.0, state=ConnectionState.OPEN
    )
    client.tls = tunnelled
    link = Link(client, tunnelled=tunnelled)
    parser = BoundedHttp1Server(Context(client, _OPTIONS), link)  # type: ignore[arg-type]
    parsed = Parsed()
    _run(parser, events.Start(), link, parsed)
    for piece in pieces:
        if parsed.over:
            break
        _run(parser, events.DataReceived(client, piece), link, parsed)
    return parsed


def _run(parser: BoundedHttp1Server, event: events.Event, link: Link, parsed: Parsed) -> None:
    waiting = [event]
    while waiting and not parsed.over:
        for command in parser.handle_event(waiting.pop(0)):
            if isinstance(command, mitm_http.ReceiveHttp) and not parsed.over:
                waiting += _hear(command.event, link, parsed)
            elif isinstance(command, commands.CloseConnection):
                parsed.over = True
        parsed.over |= link.refused


def _hear(heard: Any, link: Link, parsed: Parsed) -> list[events.Event]:
    match heard:
        case mitm_http.RequestHeaders(request=request, end_stream=end_stream):
            reading = _judged(request, link, end_stream=end_stream)
            if reading is None:
                parsed.over = True
            else:
                parsed.begun.append(reading)
        case mitm_http.RequestData(data=data):
            parsed.begun[-1] = replace(parsed.begun[-1], body=parsed.begun[-1].body + data)
        case mitm_http.RequestTrailers() | mitm_http.RequestProtocolError():
            parsed.over = True  # EgressStream refuses or aborts
        case mitm_http.RequestEndOfMessage(stream_id=stream_id):
            parsed.complete.append(parsed.begun[-1])
            if len(parsed.complete) < MAX_REQUESTS:
                answer = http.Response.make(204)
                return [
                    mitm_http.ResponseHeaders(stream_id, answer, True),
                    mitm_http.ResponseEndOfMessage(stream_id),
                ]
            parsed.over = True
    return []


def _judged(request: http.Request, link: Link, *, end_stream: bool) -> Reading | None:
    """The request as it would go on; None when it is refused."""
    fields = tuple((name.lower(), value) for name, value in request.headers.fields)
    data = request.data
    if data.method.upper() == b"CONNECT":
        if link.route.tunnel is not None or isinstance(tunnel_target(request), Deny):
            return None
        return Reading(data.method, data.authority, data.http_version, fields, b"")
    scheme = data.scheme + b"://" + data.authority if data.authority else b""
    target = scheme + data.path
    head = request_head(request, end_stream=end_stream)
    found = destination_of(request, head, link.route, lambda name: None)
    if isinstance(found, Deny) or check_head(found[1], http2=False) is not None:
        return None
    return Reading(data.method, target, data.http_version, fields, b"", destination=found[0].host)
