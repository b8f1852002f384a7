"""The last response to the client of a connection that failed, where it can still read one (I3)."""

from h2.errors import ErrorCodes
from mitmproxy import http
from mitmproxy.proxy.layers.http._http1 import Http1Server
from mitmproxy.proxy.layers.http._http2 import Http2Server
from OpenSSL import SSL

from coatcheck.decision.denial import Deny
from coatcheck.planes.mitm.link import Link
from coatcheck.planes.mitm.refusal import refusal, refusal_bytes


def final_response(link: Link, denial: Deny) -> bytes:
    """The refusal, recorded, as the client can read it now; empty where it could not."""
    client, tls = link.client, link.handshakes.client
    parser = link.parsers.by_connection.get(client)
    if isinstance(parser, Http2Server):
        return _encrypted(tls, _in_http2(parser, refusal(denial, link.admission.record_failure(denial))))
    if client.alpn == b"h2" or (isinstance(parser, Http1Server) and parser.response is not None):
        return b""
    if client.tls:
        readable = client.tls_established and tls is not None
    elif link.admission.route.tunnel is not None:  # what comes next may be TLS
        readable = parser is not None and not _connected(parser)
    else:
        readable = parser is not None or link.admission.peer.original is None
    if not readable:
        return b""
    answer = refusal_bytes(denial, link.admission.record_failure(denial))
    return _encrypted(tls, answer) if tls is not None else answer


def _connected(parser: object) -> bool:
    """It is the parser of the CONNECT that was allowed, not the one inside the tunnel."""
    request = parser.request if isinstance(parser, Http1Server) else None
    return request is not None and request.method.upper() == "CONNECT"


def _in_http2(parser: Http2Server, answer: http.Response) -> bytes:
    """For each stream that has no answer yet; then the connection goes away."""
    connection, body = parser.h2_conn, answer.raw_content or b""
    for number, stream in tuple(connection.streams.items()):
        if stream.open and not stream.state_machine.headers_sent:
            fields = [(b":status", b"%d" % answer.status_code), *answer.headers.fields]
            connection.send_headers(number, fields)
            connection.send_data(number, body, end_stream=True)
    connection.close_connection(ErrorCodes.INTERNAL_ERROR)
    sent: bytes = connection.data_to_send()
    return sent


def _encrypted(tls: SSL.Connection | None, plain: bytes) -> bytes:
    if tls is None:
        return b""
    tls.sendall(plain)
    out = bytearray()
    while True:
        try:
            out += tls.bio_read(65_535)
        except SSL.WantReadError:
            return bytes(out)
