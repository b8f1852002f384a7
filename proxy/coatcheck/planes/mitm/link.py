"""One client connection as its layers see it: a few objects, each of which changes only itself."""

from collections.abc import Mapping

from mitmproxy.connection import Client, Connection
from mitmproxy.proxy.server import ConnectionIO

from coatcheck.decision.message import Peer
from coatcheck.planes.mitm.admission import Admission
from coatcheck.planes.mitm.backpressure import Backpressure
from coatcheck.planes.mitm.deadlines import Deadlines
from coatcheck.planes.mitm.ending import Ending
from coatcheck.planes.mitm.handshakes import Handshakes
from coatcheck.planes.mitm.outbox import Outbox
from coatcheck.planes.mitm.parsers import Parsers
from coatcheck.planes.mitm.shared import Shared
from coatcheck.planes.mitm.time_slice import TimeSlice
from coatcheck.planes.mitm.turns import Sharer
from coatcheck.planes.mitm.upstreams import Upstreams


class Link:
    """Handed to all layers of a connection. `peer` is the host-side evidence of who connects."""

    def __init__(
        self, shared: Shared, client: Client, peer: Peer, transports: Mapping[Connection, ConnectionIO]
    ) -> None:
        self.client = client
        self.shared = shared
        self.deadlines = Deadlines()
        self.admission = Admission(shared, client, peer, self.deadlines)
        self.handshakes = Handshakes(shared, self.admission)
        self.parsers = Parsers()
        self.backpressure = Backpressure(client, self.parsers)
        self.outbox = Outbox(client, transports)
        self.upstreams = Upstreams()
        self.time_slice = TimeSlice()
        self.ending = Ending(client, transports, self.admission.calls, self.time_slice)
        source = peer.origins[0].value if peer.origins else f"{peer.listener}|{client.peername[0]}"
        self._sharer = shared.turns.join(source)

    def sharer(self) -> Sharer:
        """What has this connection's turns: its session, once a request has shown which one that is."""
        session = self.admission.session_id
        if session and session != self._sharer.key and self._sharer.connections:
            self.shared.turns.leave(self._sharer)
            self._sharer = self.shared.turns.join(session)
        return self._sharer

    def leave_turns(self) -> None:
        """The connection is over."""
        self.shared.turns.leave(self._sharer)
        self._sharer = Sharer("")
