"""mitmproxy's TLS layers, which ask OpenSSL only for what it has: each needless question costs an exception.

The stock layers read until OpenSSL wants more, four times a request; here its memory BIOs are checked first.
"""

from collections.abc import Generator
from typing import Any, override

from mitmproxy.connection import ConnectionState
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.layers import tls
from OpenSSL import SSL

from coatcheck.planes.mitm.client_hello import is_whole

_DATA = SSL._ffi.new("char **")


def _waiting(bio: Any) -> int:
    """Bytes that a memory BIO holds."""
    held: int = SSL._lib.BIO_get_mem_data(bio, _DATA)
    return held


class _Frugal(tls.TLSLayer):
    @override
    def tls_interact(self) -> Generator[commands.Command, Any, None]:
        while _waiting(self.tls._from_ssl):
            yield commands.SendData(self.conn, self.tls.bio_read(65_535))

    @override
    def receive_data(self, data: bytes) -> layer.CommandGenerator[None]:
        if data:
            self.tls.bio_write(data)
        plaintext = bytearray()
        closed = False
        while True:
            try:
                plaintext += self.tls.recv(65_535)
            except SSL.ZeroReturnError:
                closed = True
                break
            except SSL.Error:  # wants more, or an alert: then the peer closes, and we hear of that
                break
            if not self.tls.pending() and not _waiting(self.tls._into_ssl):
                break
        yield from self.tls_interact()  # what recv() had to answer: tickets, key updates
        if plaintext:
            yield from self.event_to_child(events.DataReceived(self.conn, bytes(plaintext)))
        if closed:
            self.conn.state &= ~ConnectionState.CAN_READ
            yield from self.event_to_child(events.ConnectionClosed(self.conn))


class EgressClientTls(_Frugal, tls.ClientTLSLayer):
    """TLS with the sandbox."""

    @override
    def receive_handshake_data(
        self, data: bytes
    ) -> Generator[commands.Command, Any, tuple[bool, str | None]]:
        if not self.client_hello_parsed:
            try:
                if not is_whole(self.recv_buffer + data):
                    self.recv_buffer += data
                    return False, None
            except ValueError:
                return False, "no ClientHello"
        return (yield from super().receive_handshake_data(data))


class EgressServerTls(_Frugal, tls.ServerTLSLayer):
    """TLS with an upstream."""

    @override
    def receive_close(self) -> layer.CommandGenerator[None]:
        """Anyone on the network path can forge an end without close_notify (RFC 8446 6.1): it is an error."""
        if not self.tls.get_shutdown() & SSL.RECEIVED_SHUTDOWN:
            self.conn.error = "closed without close_notify"
        yield from super().receive_close()
