"""One client connection as its layers see it: a few objects, each changed by itself alone."""

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
        self.time_slice = TimeSlice(shared.queue)
        self.ending = Ending(client, transports, self.admission.calls, self.time_slice)
