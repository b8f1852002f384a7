"""One client connection: mitmproxy's ConnectionHandler with our dispatch, our dialling and our bounds.

Differences from the stock handler, each with its reason:
- hooks come from a table made once, and synchronous ones run in place: dispatch was a quarter of a
  short connection's time (notes/mitmproxy, "Measured since"), and this pays for our checks;
- whatever goes wrong in a layer or a hook ends the connection without a clean close (I3); the stock
  handler logs "mitmproxy has crashed!" and goes on;
- upstream connections are dialled to screened addresses (`upstream`);
- reading stops while the other side has no room, and while a verdict is being waited for (notes/mitmproxy
  0.10); HTTP/2 has windows instead (`http2`).
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, override

from mitmproxy.connection import Client, Connection, ConnectionState, Server
from mitmproxy.proxy import commands, events, mode_specs, server
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.proxy.layers.http import HttpRequestHook
from mitmproxy.proxy.layers.http._http1 import Http1Connection
from mitmproxy.proxy.layers.http._http2 import Http2Connection
from OpenSSL import SSL

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Peer
from coatcheck.planes.listeners.sockets import address_of, reset
from coatcheck.planes.listeners.transparent import first_layer
from coatcheck.planes.mitm.failing import FAILED, ClosedLayer, final_response
from coatcheck.planes.mitm.flow import EgressContext
from coatcheck.planes.mitm.hooks import VerdictHook
from coatcheck.planes.mitm.http1 import BoundedHttp1Client
from coatcheck.planes.mitm.reading import RoomyReading
from coatcheck.planes.mitm.time_slice import TimeSlice
from coatcheck.planes.upstream.handshake import limit_handshake
from coatcheck.planes.upstream.upstream import UpstreamRefused

if TYPE_CHECKING:
    from coatcheck.planes.mitm.plane import MitmPlane
    from coatcheck.request.call import Call

logger = logging.getLogger(__name__)

_EXPLICIT = mode_specs.ProxyMode.parse("regular")


class EgressConnection(RoomyReading):
    """One client connection of one listener. `peer` holds the host-side evidence of who it is."""

    def __init__(
        self,
        plane: "MitmPlane",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: Peer,
    ) -> None:
        client = Client(
            peername=address_of(writer.get_extra_info("peername")),
            sockname=address_of(writer.get_extra_info("sockname")),
            timestamp_start=time.time(),
            proxy_mode=_EXPLICIT,
            state=ConnectionState.OPEN,
        )
        context = EgressContext(client, plane.options)
        super().__init__(context)
        self._spent = ClosedLayer(context)
        self.layer = first_layer(context, self, peer)
        self.transports[client] = server.ConnectionIO(reader=reader, writer=writer)
        self.plane, self.peer = plane, peer
        self.proof_until: float | None = None
        """When the platform token that was shown expires, Unix seconds."""
        self.tunnel: tuple[str, int] | None = None
        """CONNECT's target, once allowed; on a transparent connection, what the client names."""
        self.tunnel_session = ""
        self.opaque: Call | None = None
        """Set where the policy lets this tunnel's TLS through unopened."""
        self.tls_refused = False
        self.refusal: Call | None = None
        """The refusal being answered, which is in the audit log already."""
        self.calls: set[Call] = set()
        """Requests that have not ended."""
        self.parsers: dict[Connection, Http1Connection | Http2Connection] = {}
        """What reads and writes HTTP on each connection."""
        self.holding: set[Http1Connection] = set()
        """Those that hold a head back for the first of its body."""
        self.indebted: set[Http2Connection] = set()
        """Those that owe their peer credit for what it sent."""
        self.head_since: float | None = time.monotonic()
        """Since when a request head is being waited for on a fresh or half-read connection."""
        self.last_activity = time.monotonic()
        self.upstream_failure: dict[Connection, UpstreamRefused] = {}
        self.last_failed: Server | None = None
        self.used: set[Connection] = set()
        """Upstream connections that have carried a request: a later failure there may be a stale one."""
        self.parser: Any = None
        """The client's HTTP/1 parser, for what it holds beyond a CONNECT."""
        self._inner: NextLayer | None = None
        self._outgoing: list[commands.SendData] = []
        self.http2 = False
        """HTTP/2 is spoken on a side, so what one side sends may wait for the other in our memory."""
        self._waiting = 0
        self._deciding = 0
        self._unsettled = 0
        self._progress = asyncio.Event()
        self.client_tls: SSL.Connection | None = None
        """TLS with the client, once it has begun."""
        self.leaving: list[Call] = []
        """Requests whose heads are on their way to the upstream's socket."""
        self.serving = asyncio.current_task()
        self.told = False
        """The client was told that the connection failed; it may read that before the connection ends."""
        self._over = False
        self.turn, self._in_order = TimeSlice(plane.turns), asyncio.Lock()

    # --- events and hooks ---------------------------------------------------------------------------

    @override
    async def server_event(self, event: events.Event) -> None:
        try:
            async with self._in_order:  # a side's next word must not overtake what is left of the one before
                await self._handle(event)
                while (resume := self.turn.take_unfinished()) is not None:
                    async with self.turn.queue:
                        await asyncio.sleep(0)
                        await self._handle(resume)
        except Exception:
            logger.exception("a layer failed")
            self.fail(FAILED)
        self._progress.set()

    async def _handle(self, event: events.Event) -> None:
        async with self._server_event_lock:
            # No await from here on: mitmproxy's layers must not be re-entered (mitmproxy #7027).
            self.timeout_watchdog.register_activity()
            self.turn.begin()
            pending: deque[events.Event] = deque((event,))
            while pending:
                for command in self.layer.handle_event(pending.popleft()):
                    self._execute(command, pending)
                if self._inner is not None and not pending:
                    self._step_into_tunnel(pending)
            if self._outgoing:
                self._send()

    def _execute(self, command: commands.Command, pending: deque[events.Event]) -> None:
        if isinstance(command, commands.StartHook):
            self._start_hook(command, pending)
        elif isinstance(command, commands.SendData):
            self._outgoing.append(command)
        elif isinstance(command, commands.Log):
            pass  # mitmproxy's messages quote peers' bytes, which may hold an echoed secret (I1)
        elif isinstance(command, commands.OpenConnection):
            task = asyncio.get_running_loop().create_task(self.open_connection(command))
            task.add_done_callback(lambda task: self._look_at(task, command.connection))
            if command.connection not in self.transports:  # an eager task may have ended already
                self.transports[command.connection] = server.ConnectionIO(handler=task)
            elif self.transports[command.connection].handler is None:
                self.transports[command.connection].handler = task
        elif isinstance(command, commands.RequestWakeup):
            self.wakeup_timer.add(asyncio.get_running_loop().create_task(self.wakeup(command)))
        elif isinstance(command, commands.CloseTcpConnection):
            if command.connection in self.transports:
                self._send()
                self.close_connection(command.connection, command.half_close)
        elif isinstance(command, commands.CloseConnection):
            if command.connection in self.transports:
                self._send()
                self.close_connection(command.connection, False)
        else:
            raise RuntimeError(f"unexpected command {type(command).__name__}")

    def _send(self) -> None:
        """Write what one event led to: one system call a connection, not one a piece."""
        outgoing, self._outgoing = self._outgoing, []
        pieces: dict[Connection, list[bytes]] = {}
        for command in outgoing:
            pieces.setdefault(command.connection, []).append(command.data)
        for connection, data in pieces.items():
            io = self.transports.get(connection)
            if io is not None and io.writer is not None and not io.writer.is_closing():
                if connection is not self.client:
                    while self.leaving:
                        self.leaving.pop().left = True
                io.writer.write(data[0] if len(data) == 1 else b"".join(data))

    def enter_tunnel(self, context: Context) -> None:
        """CONNECT was allowed and answered. From the next event on the layers that read it stand aside:
        what is in the tunnel would pass through their parsers again, byte for byte, for nothing."""
        self._inner = NextLayer(context)

    def _step_into_tunnel(self, pending: deque[events.Event]) -> None:
        assert self._inner is not None
        assert self.parser is not None
        self.layer, self._inner = self._inner, None
        # What an eager client sent right behind its CONNECT; some send superfluous newlines.
        rest = bytes(self.parser.buf).lstrip(b"\r\n")
        self.parser = None
        self.await_head()
        pending.append(events.Start())
        if rest:
            pending.append(events.DataReceived(self.client, rest))

    def _start_hook(self, hook: commands.StartHook, pending: deque[events.Event]) -> None:
        entry = self.plane.hooks.get(type(hook))
        waiting = entry[1](getattr(hook, entry[0])) if entry is not None else None
        if waiting is not None:
            if not isinstance(hook, VerdictHook | HttpRequestHook):
                raise TypeError(f"nothing waits for what {type(hook).__name__} answers")
            task = asyncio.get_running_loop().create_task(self._finish_hook(hook, waiting))
            task.add_done_callback(lambda task: self._look_at(task, None))
        elif hook.blocking:
            pending.append(events.HookCompleted(hook))

    async def _finish_hook(
        self, hook: commands.StartHook, waiting: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        self._waiting += 1
        self._deciding += 1
        try:
            with self.timeout_watchdog.disarm():
                await waiting()
        except (Exception, asyncio.CancelledError):
            # The verdict that the hook did not set, or did not record, is a Deny; the stream reads it so.
            logger.exception("hook %s failed", type(hook).__name__)
            self.plane.failed_closed()
        finally:
            self._waiting -= 1
            self._deciding -= 1
        if hook.blocking:
            await self.server_event(events.HookCompleted(hook))

    @override
    async def handle_hook(self, hook: commands.StartHook) -> None:
        """For the few hooks that the base class starts itself: none of them decides anything here."""

    # --- upstream -----------------------------------------------------------------------------------

    @override
    async def open_connection(self, command: commands.OpenConnection) -> None:
        connection = command.connection
        assert connection.address is not None
        await asyncio.sleep(0)  # let `_execute` register this task first, whatever the task factory
        try:
            async with self.max_conns[connection.address]:
                await self._dial_and_serve(command)
        except UpstreamRefused as refused:
            await self._not_connected(command, refused)
        except Exception:
            logger.exception("an upstream connection failed")
            self.plane.failed_closed()
            if connection.timestamp_tcp_setup is not None:
                self.fail(FAILED)
            else:
                await self._not_connected(command, UpstreamRefused(Reason.INTERNAL_ERROR, "dialling failed"))

    async def _not_connected(self, command: commands.OpenConnection, refused: UpstreamRefused) -> None:
        connection = command.connection
        self.upstream_failure[connection] = refused
        connection.error = refused.reason.value
        await self.server_event(events.OpenConnectionCompleted(command, refused.reason.value))
        self.transports.pop(connection, None)

    async def _dial_and_serve(self, command: commands.OpenConnection) -> None:
        connection = command.connection
        connection.timestamp_start = time.time()
        reader, writer = await self.plane.upstream.connect(*connection.address)  # type: ignore[misc]
        connection.timestamp_tcp_setup = time.time()
        connection.state = ConnectionState.OPEN
        connection.peername = writer.get_extra_info("peername")
        connection.sockname = writer.get_extra_info("sockname")
        io = server.ConnectionIO(handler=asyncio.current_task(), reader=reader, writer=writer)
        self.transports[connection] = io
        deadline = limit_handshake(connection, io, self.upstream_failure)
        await self.server_event(events.OpenConnectionCompleted(command, None))
        try:
            await self.handle_connection(connection)
        finally:
            deadline.cancel()
            connection.timestamp_end = time.time()
            parser = self.parsers.pop(connection, None)
            if isinstance(parser, Http2Connection):
                self.indebted.discard(parser)
            self.used.discard(connection)
            self.upstream_failure.pop(connection, None)
            self.plane.upstream_closed(connection)

    def waiting_for_upstream(self, by: int) -> None:
        """+1 when a stream begins to wait for an upstream connection, -1 when it no longer does."""
        self._waiting += by

    # --- endings ------------------------------------------------------------------------------------

    def abort(self, reason: Reason) -> None:
        """End everything at once without a clean end of message: reset, not close (I3, I5)."""
        self.turn.take_unfinished()
        self._over = True
        for call in tuple(self.calls):
            call.complete(reason)
        for connection, io in tuple(self.transports.items()):
            if io.writer is not None and not (self.told and connection is self.client):
                reset(io.writer)
            # It would wait for a layer to close what is closed; before it reads, `serving` stands for it.
            handler = io.handler or (self.serving if connection is self.client else None)
            if handler is not None:
                handler.cancel("aborted")

    def cut(self) -> None:
        """`abort`, whatever fails on its way: the sockets are reset in any case (I3)."""
        try:
            self.abort(Reason.INTERNAL_ERROR)
        except Exception:
            logger.exception("a connection could not be aborted in order")
            self._over = True
            for io in tuple(self.transports.values()):
                if io.writer is not None:
                    reset(io.writer)

    def fail(self, denial: Deny) -> None:
        """End everything because something of ours failed, or took too long. Whoever can still be told is
        told why; once something has left, nobody gets a clean end (I3)."""
        if self._over or self.client not in self.transports:
            return
        self.plane.failed_closed()
        # What the client was owed goes out; what would have gone upstream beside the failure stays.
        self._outgoing = [command for command in self._outgoing if command.connection is self.client]
        try:
            if not any(call.left for call in self.calls):
                self._send()
                word, writer = final_response(self, denial), self.transports[self.client].writer
                if word and writer is not None:
                    writer.write(word)
                    self.told = True
        except Exception:
            logger.exception("a client could not be told that its connection failed")
        self.layer = self._spent
        self.abort(denial.reason)

    def take_back(self, upstream: Connection) -> None:
        """What is on its way to an upstream's socket stays here, and so the connection cannot go on."""
        self._outgoing = [command for command in self._outgoing if command.connection is not upstream]
        self.leaving.clear()
        io = self.transports.get(upstream)
        if io is not None and io.writer is not None:
            reset(io.writer)
        parser = self.parsers.get(upstream)
        if isinstance(parser, BoundedHttp1Client):
            parser.forget_held()

    def _look_at(self, task: asyncio.Task[None], opening: Connection | None) -> None:
        """A task that ended: whoever waits for what it did not do must not wait for ever."""
        if task.cancelled():
            unfinished = opening is None or opening in self.transports  # in order it would have left them
        else:
            unfinished = task.exception() is not None
        if unfinished:
            self.fail(FAILED)

    def reset_client(self) -> None:
        io = self.transports.get(self.client)
        if io is not None and io.writer is not None:
            reset(io.writer)
            if io.handler is not None:
                io.handler.cancel("reset")

    @override
    async def on_timeout(self) -> None:
        self.abort(Reason.UPSTREAM_TIMEOUT)

    def upstream_denial(self) -> Deny:
        """Why the upstream connection that just failed was not made."""
        failed, self.last_failed = self.last_failed, None
        if failed is not None:
            refused = self.upstream_failure.pop(failed, None)
            if refused is not None:
                return Deny(refused.reason, str(refused))
            if failed.timestamp_tcp_setup is not None and failed.tls:
                # mitmproxy's message may quote what the peer sent instead of TLS; OpenSSL's verdict not.
                known = failed.error if failed.error and "verify failed" in failed.error else ""
                return Deny(Reason.UPSTREAM_TLS, known or "the TLS handshake failed")
        return Deny(Reason.UPSTREAM_UNREACHABLE, "the connection failed before it was usable")

    def await_head(self) -> None:
        """A request head has begun, or is due, on this connection."""
        self.head_since = time.monotonic()
