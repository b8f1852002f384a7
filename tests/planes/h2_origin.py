"""An HTTP/2 upstream by the `h2` library, whose every frame a test decides."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import h2.config
import h2.connection
import h2.events

from tests.upstreams import UpstreamTls

type Headers = list[tuple[str, str]]


class H2Peer:
    """One connection. `events` come in order; sending respects the peer's windows."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        self.requests: dict[int, Headers] = {}
        self.received: dict[int, int] = {}
        """Bytes of body by stream."""
        self.ended: set[int] = set()
        self.reset: set[int] = set()
        self.acknowledges = True
        """False: the peer gets no more credit, as from a receiver that does not read."""
        self.moved = asyncio.Event()

    async def send(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """Body, as far as the window goes, then more as it opens."""
        while data:
            room = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
            if room <= 0:
                self.moved.clear()
                await self.moved.wait()
                continue
            self.h2.send_data(stream, data[:room])
            data = data[room:]
            await self.flush()
        if end:
            self.h2.end_stream(stream)
            await self.flush()

    async def headers(self, stream: int, fields: Headers, *, end: bool = False) -> None:
        self.h2.send_headers(stream, fields, end_stream=end)
        await self.flush()

    async def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())
        await self.writer.drain()

    async def run(self, origin: "H2Origin") -> None:
        self.h2.initiate_connection()
        await self.flush()
        while data := await self.reader.read(65_536):
            for event in self.h2.receive_data(data):
                self._note(event, origin)
            self.moved.set()
            await self.flush()

    def _note(self, event: h2.events.Event, origin: "H2Origin") -> None:
        if isinstance(event, h2.events.RequestReceived):
            stream = event.stream_id
            self.requests[stream] = [(str(name), str(value)) for name, value in event.headers]
            self.received[stream] = 0
            origin.start(self, stream)
        elif isinstance(event, h2.events.DataReceived):
            self.received[event.stream_id] += len(event.data)
            if self.acknowledges:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.ended.add(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self.reset.add(event.stream_id)

    async def until_ended(self, stream: int) -> None:
        while stream not in self.ended:
            self.moved.clear()
            await self.moved.wait()


class H2Origin:
    """`behave(peer, stream)` answers each stream; peers are kept for a test to look at."""

    def __init__(self) -> None:
        self.port = 0
        self.peers: list[H2Peer] = []
        self.tasks: set[asyncio.Task[None]] = set()

    async def behave(self, peer: H2Peer, stream: int) -> None:
        await peer.until_ended(stream)
        await peer.headers(stream, [(":status", "200"), ("content-length", "2")])
        await peer.send(stream, b"ok", end=True)

    def start(self, peer: H2Peer, stream: int) -> None:
        async def guarded() -> None:
            try:
                await self.behave(peer, stream)
            except (OSError, h2.exceptions.ProtocolError):
                pass

        self._keep(asyncio.create_task(guarded()))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._keep(task)
        peer = H2Peer(reader, writer)
        self.peers.append(peer)
        try:
            await peer.run(self)
        except (OSError, h2.exceptions.ProtocolError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()


@asynccontextmanager
async def h2_origin(upstream_tls: UpstreamTls) -> AsyncIterator[H2Origin]:
    """On a loopback port, with a certificate for `tests.upstreams.NAMES`."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(upstream_tls.certificate, upstream_tls.key)
    tls.set_alpn_protocols(["h2"])
    origin = H2Origin()
    server = await asyncio.start_server(origin.serve, "127.0.0.1", 0, ssl=tls)
    origin.port = server.sockets[0].getsockname()[1]
    try:
        yield origin
    finally:
        server.close()
        for task in tuple(origin.tasks):
            task.cancel()
        await asyncio.gather(*origin.tasks, return_exceptions=True)
