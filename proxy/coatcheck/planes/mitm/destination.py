"""Where a request goes, read once from all the places that could say so, which must agree (I7)."""

import re
from collections.abc import Callable
from dataclasses import replace

from mitmproxy import http
from mitmproxy.connection import Client

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.head import check_connect
from coatcheck.decision.host import HostRefused, split_authority
from coatcheck.decision.message import Destination, OriginClass, Peer, RequestHead
from coatcheck.planes.mitm.translate import request_head
from coatcheck.planes.origins.proxy_authorization import ClientProof

type ReverseHost = Callable[[str], str | None]
"""The host that a name in the first segment of a path stands for (reverse mode)."""


class Route:
    """Where one client connection leads, as far as it is known."""

    def __init__(self, client: Client, proof: ClientProof) -> None:
        self.client = client
        self._proof = proof
        self.tunnel: tuple[str, int] | None = None
        """CONNECT's target, once allowed; on a transparent connection, what the client names."""

    @property
    def peer(self) -> Peer:
        return self._proof.peer


def tunnel_target(request: http.Request) -> tuple[str, int] | Deny:
    """CONNECT's target; its port must be there (RFC 9110 9.3.6), and a Host header must name the same."""
    malformed = check_connect(request_head(request, end_stream=True))
    if malformed is not None:
        return malformed
    try:
        target = split_authority(request.data.authority.decode("latin-1"), None)
        for value in request.headers.get_all("host"):
            # curl sends `host:port`, some clients only the name
            if split_authority(value, target[1]) != target:
                return Deny(Reason.AUTHORITY_MISMATCH, "Host differs from the CONNECT target")
    except HostRefused as refused:
        return Deny(Reason.HOST_FORM_REFUSED, str(refused))
    return target


def destination_of(
    request: http.Request,
    head: RequestHead,
    route: Route,
    reverse_host: ReverseHost,
) -> tuple[Destination, RequestHead] | Deny:
    """The one destination of a request, and its head in origin form."""
    try:
        if route.peer.original is not None and route.tunnel is None:
            _enter_plain(head, route)
            if route.tunnel is None:  # its client asks no proxy: neither in absolute form nor in reverse mode
                return Deny(Reason.AUTHORITY_MISMATCH, "no Host, so the destination is unknown")
        if route.tunnel is not None:
            return _in_tunnel(request, head, route)
        if request.data.authority:
            return _absolute(request, head, route, reverse_host)
        return _reverse(head, route, reverse_host)
    except HostRefused as refused:
        return Deny(Reason.HOST_FORM_REFUSED, str(refused))


def with_one_host(destination: Destination, head: RequestHead) -> RequestHead:
    """`head` with Host as `destination` is written, not as the client typed it: to servers that compare text,
    `API.example.org` and `api.example.org:443` are other names."""
    host = destination.authority
    if all(value == host for value in head.get_all("host")):
        return head
    headers = tuple((name, host if name == "host" else value) for name, value in head.headers)
    return replace(head, headers=headers)


def _enter_plain(head: RequestHead, route: Route) -> None:
    """The first Host on a transparent connection without TLS is where all of it goes."""
    named = head.get("host")
    if named is not None:
        route.tunnel = split_authority(named, 80)


def _in_tunnel(
    request: http.Request, head: RequestHead, route: Route
) -> tuple[Destination, RequestHead] | Deny:
    assert route.tunnel is not None
    secure = bool(route.client.tls)
    default = 443 if secure else 80
    http2 = route.client.alpn == b"h2"
    authority = request.data.authority.decode("latin-1")
    if authority and not http2:
        # Servers prefer an absolute-form target to Host (RFC 9112 3.2.2), policies looked at Host.
        return Deny(Reason.AUTHORITY_MISMATCH, "absolute-form request where there is no proxy to ask")
    if http2 and request.data.scheme != b"https":
        # It would be lost on the way to HTTP/1, and some servers build a URL with it (RFC 9113 8.3.1).
        return Deny(Reason.HEADER_FORM_REFUSED, ":scheme is not https")
    named = [*([authority] if authority else []), *head.get_all("host")]
    if not named:
        return Deny(Reason.AUTHORITY_MISMATCH, "no Host")
    for name in named:
        if split_authority(name, default) != route.tunnel:
            than = "CONNECT target" if route.peer.original is None else "name that the connection is for"
            return Deny(Reason.AUTHORITY_MISMATCH, f"Host differs from the {than}", alarm=True)
    host, port = route.tunnel
    return Destination("https" if secure else "http", host, port), head


def _absolute(
    request: http.Request,
    head: RequestHead,
    route: Route,
    reverse_host: ReverseHost,
) -> tuple[Destination, RequestHead] | Deny:
    if request.data.scheme != b"http":
        return Deny(Reason.PROTOCOL_REFUSED, "absolute-form https without CONNECT: use a tunnel")
    authority = request.data.authority.decode("latin-1")
    target = split_authority(authority, 80)
    for value in head.get_all("host"):
        if split_authority(value, 80) != target:
            return Deny(Reason.AUTHORITY_MISMATCH, "Host differs from the request target", alarm=True)
    request.data.authority = b""  # origin form: some servers do not take the absolute one
    if target == route.client.sockname:
        # With a base URL of ours and proxy variables, clients ask the proxy for the proxy: reverse mode.
        return _reverse(head, route, reverse_host)
    return Destination("http", *target), head


def _reverse(
    head: RequestHead,
    route: Route,
    reverse_host: ReverseHost,
) -> tuple[Destination, RequestHead] | Deny:
    """`/NAME/rest` on the proxy itself. The Host that reaches the upstream is the upstream's."""
    page = _asked_by_a_page(head, route)
    if page is not None:
        return page
    name, _, rest = head.target.removeprefix("/").partition("/")
    host = reverse_host(name)
    if host is None:
        return Deny(
            Reason.HOST_NOT_ALLOWED,
            "origin-form request whose first path segment names no credential of the session",
        )
    headers = tuple((key, host if key == "host" else value) for key, value in head.headers)
    if head.get("host") is None:  # without one the upstream chooses whose name the secret is for
        headers = (("host", host), *headers)
    return Destination("https", host, 443), replace(head, target="/" + rest, headers=headers)


_PAGES = ("origin", "sec-fetch-site")
"""Headers that a page in a browser cannot leave out. (Node's `fetch` sends Sec-Fetch-Mode.)"""
_OURS = re.compile(r"[0-9.]+|[0-9a-f:.]*:[0-9a-f:.]*|[^.]+|(.*\.)?(localhost|internal)")
"""An address, or a name that no stranger can register: of one label, or in a reserved domain (RFC 6761; ICANN
reserves `internal`, as in host.docker.internal)."""


def _asked_by_a_page(head: RequestHead, route: Route) -> Deny | None:
    """A session's own port alone proves the session, and a browser on that machine reaches it. A page has
    no handle, but needs none where policy says so; and after DNS rebinding it could read the answer, too."""
    own_port = any(origin.kind is OriginClass.SOCKET for origin in route.peer.origins)
    if not own_port or route.client.sockname[0] == "unix":
        return None
    if any(head.get(name) is not None for name in _PAGES):
        return Deny(Reason.OWN_SURFACE, "a page in a browser asks the session's own port", alarm=True)
    for named in head.get_all("host"):
        host, _ = split_authority(named, 80)
        if not _OURS.fullmatch(host):
            return Deny(Reason.AUTHORITY_MISMATCH, "Host is not a name of the session's own port", alarm=True)
    return None
