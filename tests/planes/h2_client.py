"""An HTTP/2 client by the `h2` library, whose every frame a test decides."""

import asyncio

import h2.config
import h2.connection
import h2.events

from tests.daemon import Sandbox


class H2Client:
    """A client that decides about every frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sandbox: Sandbox) -> None:
        self.reader, self.writer, self.sandbox = reader, writer, sandbox
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.got: dict[int, bytes] = {}
        self.status: dict[int, str] = {}
        self.ended: set[int] = set()
        self.reset: dict[int, int] = {}
        self.uploaded: dict[int, int] = {}
        self.held: set[int] = set()
        """Streams that get no credit."""
        self.gone = False

    def request(self, method: str = "GET", *, end: bool = True, handle: bool = True) -> int:
        stream = self.h2.get_next_available_stream_id()
        fields = [(":method", method), (":scheme", "https"), (":authority", "api.github.com"), (":path", "/")]
        if handle:
            fields.append(("authorization", f"Bearer {self.sandbox.handles['github']}"))
        self.h2.send_headers(stream, fields, end_stream=end)
        return stream

    async def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())
        await self.writer.drain()

    async def upload(self, stream: int, size: int) -> None:
        while size:
            room = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size, size)
            if room <= 0:
                await asyncio.sleep(0.005)
                continue
            self.h2.send_data(stream, b"x" * room)
            size -= room
            self.uploaded[stream] = self.uploaded.get(stream, 0) + room
            await self.flush()
        self.h2.end_stream(stream)
        await self.flush()

    async def run(self) -> None:
        try:
            while data := await self.reader.read(65_536):
                for event in self.h2.receive_data(data):
                    self.note(event)
                await self.flush()
        except OSError:
            pass
        self.gone = True

    def note(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            self.status[event.stream_id] = next(
                str(value) for name, value in event.headers if str(name) == ":status"
            )
        elif isinstance(event, h2.events.DataReceived):
            self.got[event.stream_id] = self.got.get(event.stream_id, b"") + event.data
            if event.stream_id not in self.held:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.ended.add(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self.reset[event.stream_id] = event.error_code
