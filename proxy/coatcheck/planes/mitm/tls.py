"""TLS on both sides: one prepared context a host towards clients, verified names towards upstreams.

Why not mitmproxy's TlsConfig: it builds each client handshake's certificate anew, takes the upstream's
name and ALPN from the client's hello, and never resumes upstream sessions.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import certifi
from mitmproxy.connection import Connection, Server
from OpenSSL import SSL

from coatcheck.certificates.leaf import Leaf, LeafIssuer

CIPHERS = (
    b"ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:"
    b"ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:"
    b"ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305"
)
"""Forward-secret AEAD suites only (Mozilla "intermediate" without DHE)."""

CONTEXTS = 1024
"""Prepared client contexts kept (about 40 KiB each); names come from policy, so this covers fleets."""

REFUSED = 64
"""The same for names that are refused: an agent tries a handful, an attacker as many as it likes."""

SESSIONS = 4096
"""Upstream TLS sessions kept for resumption (about 2 KiB each)."""

_HOST_FLAGS: int = (
    SSL._lib.X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | SSL._lib.X509_CHECK_FLAG_NEVER_CHECK_SUBJECT
)


def _context(method: int) -> SSL.Context:
    context = SSL.Context(method)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_CIPHER_SERVER_PREFERENCE | SSL.OP_NO_RENEGOTIATION)
    context.set_cipher_list(CIPHERS)
    # One write buffer a connection is freed while idle: thousands of idle keep-alive connections stay small.
    context.set_mode(SSL._lib.SSL_MODE_RELEASE_BUFFERS)
    return context


def _select_alpn(conn: SSL.Connection, offers: list[bytes]) -> Any:
    """HTTP/2 only where policy asked for it; a client that offers nothing speaks HTTP/1.1."""
    wanted: tuple[bytes, ...] = conn.get_app_data()
    for protocol in wanted:
        if protocol in offers:
            return protocol
    return SSL.NO_OVERLAPPING_PROTOCOLS


class ClientTls:
    """Terminates the sandbox's TLS with a leaf for exactly one name."""

    def __init__(self, issuer: LeafIssuer, max_contexts: int = CONTEXTS) -> None:
        self._issuer = issuer
        self._max_contexts = max_contexts
        self._contexts: OrderedDict[str, tuple[Leaf, SSL.Context]] = OrderedDict()

    def __len__(self) -> int:
        """For how many names a context is kept."""
        return len(self._contexts)

    def small(self) -> "ClientTls":
        """Another one of the same CA, with a small cache of its own: for names that are refused."""
        return ClientTls(LeafIssuer(self._issuer.authority, max_entries=REFUSED), REFUSED)

    def prepare(self, host: str) -> None:
        """Raises CertificateError when there can be no certificate for `host`, which policy has allowed."""
        self._issuer.issue(host)

    def connection(self, host: str, *, http2: bool) -> SSL.Connection:
        """A server-side connection for `host`, which policy allows, or whose refusal is sent over
        TLS. Raises CertificateError."""
        leaf = self._issuer.issue(host)
        cached = self._contexts.get(host)
        if cached is None or cached[0] is not leaf:
            cached = self._prepare(leaf)
        else:
            self._contexts.move_to_end(host)
        conn = SSL.Connection(cached[1])
        conn.set_app_data((b"h2", b"http/1.1") if http2 else (b"http/1.1",))
        conn.set_accept_state()
        return conn

    def _prepare(self, leaf: Leaf) -> tuple[Leaf, SSL.Context]:
        context = _context(SSL.TLS_SERVER_METHOD)
        context.use_certificate(leaf.certificate)
        context.use_privatekey(self._issuer.private_key)
        context.set_alpn_select_callback(_select_alpn)
        # Tickets of one name are no use on another: each name has its own context, hence its own keys.
        context.set_session_id(leaf.host.encode()[:32])
        entry = (leaf, context)
        self._contexts[leaf.host] = entry
        if len(self._contexts) > self._max_contexts:
            self._contexts.popitem(last=False)
        return entry


class UpstreamTls:
    """Verifies upstreams by the name that policy allowed, and resumes sessions under that name only.

    A session is kept under (name, ALPN): never across names, because resumption skips verification
    (Envoy #46243), and never beyond the end of the certificate that was verified. One trust store and no
    client certificate an instance, so they are not in the key.
    """

    def __init__(self, ca_file: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._ca_file = str(ca_file) if ca_file else certifi.where()
        self._context = _context(SSL.TLS_CLIENT_METHOD)
        self._context.load_verify_locations(self._ca_file, None)
        self._context.set_verify(SSL.VERIFY_PEER, None)
        self._context.set_session_cache_mode(SSL.SESS_CACHE_CLIENT | SSL._lib.SSL_SESS_CACHE_NO_INTERNAL)
        self._sessions: OrderedDict[tuple[str, bool], tuple[SSL.Session, float]] = OrderedDict()
        """Each with the end of its certificate, Unix seconds."""
        self._begun: WeakKeyDictionary[Connection, tuple[str, bool, SSL.Connection]] = WeakKeyDictionary()
        """Connections whose session was not taken yet."""

    def connection(self, server: Server, host: str, *, http2: bool) -> SSL.Connection:
        """A client-side connection that only a certificate for `host` can complete."""
        conn = SSL.Connection(self._context)
        param = SSL._lib.SSL_get0_param(conn._ssl)
        SSL._lib.X509_VERIFY_PARAM_set_hostflags(param, _HOST_FLAGS)
        name = host.encode("ascii")
        try:
            packed = ip_address(host).packed
        except ValueError:
            conn.set_tlsext_host_name(name)
            ok = SSL._lib.X509_VERIFY_PARAM_set1_host(param, name, len(name))
        else:  # RFC 6066: an address is no server name
            ok = SSL._lib.X509_VERIFY_PARAM_set1_ip(param, packed, len(packed))
        if ok != 1:
            raise ValueError("OpenSSL refused the name to verify")
        server.sni = host
        server.alpn_offers = (b"h2", b"http/1.1") if http2 else (b"http/1.1",)
        conn.set_alpn_protos(list(server.alpn_offers))
        conn.set_connect_state()
        session, until = self._sessions.get((host, http2), (None, 0.0))
        if session is not None and self._clock() < until:
            conn.set_session(session)
        self._begun[server] = (host, http2, conn)
        return conn

    def answered(self, server: Server) -> None:
        """The first response head is in: keep the session for the next connection. TLS 1.3 sends its tickets
        with the first data."""
        begun = self._begun.pop(server, None)
        if begun is not None:
            self._remember(*begun)

    def closed(self, server: Connection) -> None:
        """After a connection that failed before it answered, the host is verified anew."""
        begun = self._begun.pop(server, None)
        if begun is not None and server.error:
            self._sessions.pop((begun[0], False), None)
            self._sessions.pop((begun[0], True), None)

    def _remember(self, host: str, http2: bool, conn: SSL.Connection) -> None:
        """Keep the session of an established, verified connection."""
        session, certificate = conn.get_session(), conn.get_peer_certificate(as_cryptography=True)
        if session is None or certificate is None:
            return
        self._sessions[(host, http2)] = (session, certificate.not_valid_after_utc.timestamp())
        self._sessions.move_to_end((host, http2))
        if len(self._sessions) > SESSIONS:
            self._sessions.popitem(last=False)
