"""TLS on both sides of one connection: the names accepted, the certificate shown, the name verified."""

from mitmproxy.connection import Server
from mitmproxy.tls import ClientHello, TlsData
from OpenSSL import SSL

from coatcheck.certificates.authority import CertificateError
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.host import HostRefused
from coatcheck.planes.mitm.admission import Admission
from coatcheck.planes.mitm.client_hello import server_name
from coatcheck.planes.mitm.shared import Shared


class Handshakes:
    """Belongs to one client connection."""

    def __init__(self, shared: Shared, admission: Admission) -> None:
        self._shared = shared
        self._admission = admission
        self._refused = False
        self.client: SSL.Connection | None = None
        """TLS with the client, once it has begun."""

    def check_name(self, hello: ClientHello) -> None:
        """SNI and CONNECT target must be one name (I7): domain fronting ends here, without a handshake."""
        tunnel = self._admission.route.tunnel
        host = tunnel[0] if tunnel else ""
        literal = host.replace(".", "").isdigit() or ":" in host
        detail = "the TLS server name differs from the CONNECT target"
        try:
            name = server_name(hello)
            same = name == host if name is not None else literal
            detail = detail if name is not None else "no TLS server name"
        except HostRefused as refused:
            same, detail = False, str(refused)
        if not same:
            self._admission.refuse_connection(Deny(Reason.AUTHORITY_MISMATCH, detail, alarm=True))
            self._refused = True

    def start_client(self, data: TlsData) -> None:
        """Without `ssl_conn` mitmproxy closes the connection before any byte of a handshake."""
        admission = self._admission
        if self._refused or admission.route.tunnel is None:
            return
        host = admission.route.tunnel[0]
        refused = admission.refusal is not None
        if admission.refused_inside:
            admission.await_refused_head()
        try:
            http2 = not refused and admission.wants_http2(host)
            tls = self._shared.signing_ca.tls(admission.peer, refused=refused)
            data.ssl_conn = self.client = tls.connection(host, http2=http2)
        except CertificateError as error:
            if not refused:  # else it is recorded, and only cannot be told
                admission.refuse_connection(Deny(Reason.INTERNAL_ERROR, f"no certificate: {error}"))

    def start_server(self, data: TlsData) -> None:
        """The name to verify is the destination that policy allowed; ALPN is policy's, too."""
        server = data.conn
        assert isinstance(server, Server)
        assert server.address is not None
        host = server.address[0]
        http2 = self._admission.wants_http2(host)
        data.ssl_conn = self._shared.upstream_tls.connection(server, host, http2=http2)
