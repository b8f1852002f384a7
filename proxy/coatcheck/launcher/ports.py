"""In the supervisor: reaches ports of a sandbox from outside: bytes in a WebSocket, or HTTP and WebSocket
requests.

As bytes: binary messages both ways; a text one says that nothing more follows.

A caller that comes here has been authenticated and authorised by the control API; what the sandbox answers is
bytes of its own making, and no program of ours heeds it.
"""

import asyncio
import socket
from typing import TYPE_CHECKING, Final

from aiohttp import BaseConnector, ClientRequest, ClientTimeout, WSMsgType
from aiohttp.client_proto import ResponseHandler
from aiohttp.web import WebSocketResponse

from coatcheck.launcher.channel import Channel, ChannelBroken, Chunk, Stream, StreamReset
from coatcheck.launcher.egress import splice
from coatcheck.launcher.supervisor import Supervisor
from coatcheck.sandbox.refusal import of_agent, refusal
from coatcheck.sandbox.sandbox import SandboxProblem as Problem

if TYPE_CHECKING:
    from aiohttp.tracing import Trace

OPEN_SECONDS: Final = 10.0
"""For the sandbox's agent to connect to its own loopback."""
BUFFER: Final = 128 * 1024


async def connect(channel: Channel, port: int, identity: str) -> Stream:
    """A connection to 127.0.0.1:port in the guest. StreamReset, ChannelBroken."""
    return await channel.open("connect", [("port", str(port)), ("identity", identity)])


async def serve_port(ws: WebSocketResponse, sandbox: Supervisor, port: int, identity: str) -> None:
    """Carry bytes between a client's WebSocket and a port, until either ends."""

    async def inwards(stream: Stream) -> None:
        async for message in ws:
            if message.type is not WSMsgType.BINARY:
                await stream.end()  # `{"end": true}`: nothing more follows this way
                return
            await stream.write(message.data)
        stream.reset("cancelled")

    try:
        stream = await connect(await sandbox.channel(), port, identity)
        async with stream:
            sending = asyncio.create_task(inwards(stream))
            try:
                while (item := await stream.read()) is not None:
                    if isinstance(item, Chunk):
                        await ws.send_bytes(item.data)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
    except StreamReset as error:
        if error.reason != "cancelled" and not ws.closed:
            await ws.send_json(refusal(of_agent(error.reason)))
    except ChannelBroken as error:
        if not ws.closed:
            await ws.send_json(refusal(Problem.NOT_RUNNING, str(error)))


class GuestConnector(BaseConnector):
    """aiohttp's client, into a sandbox: each connection is a stream to one port."""

    def __init__(self, channel: Channel, port: int, identity: str) -> None:
        super().__init__(force_close=True)
        self._channel = channel
        self._port = port
        self._identity = identity
        self._splicing: set[asyncio.Task[None]] = set()

    async def _create_connection(
        self,
        req: ClientRequest,
        traces: "list[Trace]",
        timeout: ClientTimeout,  # noqa: ASYNC109 - aiohttp asks so
    ) -> ResponseHandler:
        stream = await connect(self._channel, self._port, self._identity)
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        reader, writer = await asyncio.open_connection(sock=ours, limit=BUFFER)
        task = loop.create_task(splice(stream, reader, writer))
        self._splicing.add(task)
        task.add_done_callback(self._splicing.discard)
        _, protocol = await loop.create_connection(self._factory, sock=theirs)
        return protocol
