"""One client connection: mitmproxy's ConnectionHandler with our dispatch, our dialling and our bounds.

Differences from the stock handler, each with its reason:
- hooks come from a table made once, and synchronous ones run in place: dispatch was a quarter of a
  short connection's time, and this pays for our checks;
- whatever goes wrong in a layer or a hook ends the connection without a clean close (I3); the stock
  handler logs "mitmproxy has crashed!" and goes on;
- upstream connections are dialled to screened addresses (`upstream`);
- reading stops while the other side has no room, and while a verdict is waited for (`backpressure`).
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, override

from mitmproxy.connection import Client, Connection, ConnectionState
from mitmproxy.proxy import commands, events, layer, mode_specs, server
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.proxy.layers.http import HttpRequestHook
from mitmproxy.proxy.layers.http._http1 import Http1Connection

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Peer
from coatcheck.planes.mitm.final_response import final_response
from coatcheck.planes.mitm.flow import EgressContext
from coatcheck.planes.mitm.hooks import EnterTunnel, VerdictHook
from coatcheck.planes.mitm.link import Link
from coatcheck.planes.mitm.refusal import FAILED
from coatcheck.planes.mitm.shared import Shared
from coatcheck.planes.mitm.transparent import first_layer
from coatcheck.planes.sockets import address_of
from coatcheck.planes.upstream.handshake import limit_handshake
from coatcheck.planes.upstream.upstream import UpstreamRefused

logger = logging.getLogger(__name__)

_EXPLICIT = mode_specs.ProxyMode.parse("regular")


class ClosedLayer(layer.Layer):
    """Ignores every event: the connection has failed, and only its end is waited for."""

    @override
    def _handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        yield from ()


class EgressConnection(server.ConnectionHandler):
    """One client connection of one listener: moves bytes between sockets and layers. `link` has its state."""

    def __init__(
        self, shared: Shared, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer
    ) -> None:
        """`peer` is the host-side evidence of who connects."""
        client = Client(
            peername=address_of(writer.get_extra_info("peername")),
            sockname=address_of(writer.get_extra_info("sockname")),
            timestamp_start=time.time(),
            proxy_mode=_EXPLICIT,
            state=ConnectionState.OPEN,
        )
        context = EgressContext(client, shared.options)
        super().__init__(context)
        self.transports[client] = server.ConnectionIO(reader=reader, writer=writer)
        self.link = Link(shared, client, peer, self.transports)
        self.layer = first_layer(context, self.link)
        self._shared = shared
        self._closed_layer = ClosedLayer(context)
        self._tunnel_layer: NextLayer | None = None
        """What reads the tunnel that was opened, from the next event on."""
        self._in_order = asyncio.Lock()

    # --- events and hooks ---------------------------------------------------------------------------

    @override
    async def server_event(self, event: events.Event) -> None:
        try:
            async with self._in_order:  # what a side sends next must not overtake what is left from before
                await self._take_turn(event)
                while (resume := self.link.time_slice.take_unfinished()) is not None:
                    await self._take_turn(resume)
        except Exception:
            logger.exception("a layer failed")
            self.fail(FAILED)
        self.link.backpressure.note_progress()

    async def _take_turn(self, event: events.Event) -> None:
        await self._shared.turns.take(self.link.sharer(), partial(self._handle, event))

    def _handle(self, event: events.Event) -> None:
        # No await in here: mitmproxy's layers must not be re-entered (mitmproxy #7027).
        self.timeout_watchdog.register_activity()
        self.link.time_slice.begin()
        pending: deque[events.Event] = deque((event,))
        while pending:
            for command in self.layer.handle_event(pending.popleft()):
                self._execute(command, pending)
            if self._tunnel_layer is not None and not pending:
                self._step_into_tunnel(pending)
        if not self.link.outbox.is_empty:
            self.link.outbox.flush()

    def _execute(self, command: commands.Command, pending: deque[events.Event]) -> None:
        if isinstance(command, commands.StartHook):
            self._start_hook(command, pending)
        elif isinstance(command, commands.SendData):
            self.link.outbox.put(command)
        elif isinstance(command, commands.Log):
            pass  # mitmproxy's messages quote peers' bytes, which may hold an echoed secret (I1)
        elif isinstance(command, commands.OpenConnection):
            task = asyncio.get_running_loop().create_task(self.open_connection(command))
            task.add_done_callback(lambda task: self._fail_if_unfinished(task, command.connection))
            if command.connection not in self.transports:  # an eager task may have ended already
                self.transports[command.connection] = server.ConnectionIO(handler=task)
            elif self.transports[command.connection].handler is None:
                self.transports[command.connection].handler = task
        elif isinstance(command, commands.RequestWakeup):
            self.wakeup_timer.add(asyncio.get_running_loop().create_task(self.wakeup(command)))
        elif isinstance(command, commands.CloseTcpConnection):
            if command.connection in self.transports:
                self.link.outbox.flush()
                self.close_connection(command.connection, command.half_close)
        elif isinstance(command, commands.CloseConnection):
            if command.connection in self.transports:
                self.link.outbox.flush()
                self.close_connection(command.connection, False)
        elif isinstance(command, EnterTunnel):
            self._tunnel_layer = NextLayer(command.context)
        else:
            raise RuntimeError(f"unexpected command {type(command).__name__}")

    def _step_into_tunnel(self, pending: deque[events.Event]) -> None:
        assert self._tunnel_layer is not None
        parser = self.link.parsers.by_connection[self.client]
        assert isinstance(parser, Http1Connection)
        self.layer, self._tunnel_layer = self._tunnel_layer, None
        # What an eager client sent right behind its CONNECT; some send superfluous newlines.
        rest = bytes(parser.buf).lstrip(b"\r\n")
        if not self.link.admission.refused_inside:  # else a shorter time runs
            self.link.deadlines.await_head()
        pending.append(events.Start())
        if rest:
            pending.append(events.DataReceived(self.client, rest))

    def _start_hook(self, hook: commands.StartHook, pending: deque[events.Event]) -> None:
        entry = self._shared.hooks.get(type(hook))
        waiting = entry[1](getattr(hook, entry[0])) if entry is not None else None
        if waiting is not None:
            if not isinstance(hook, VerdictHook | HttpRequestHook):
                raise TypeError(f"nothing waits for what {type(hook).__name__} answers")
            task = asyncio.get_running_loop().create_task(self._finish_hook(hook, waiting))
            task.add_done_callback(lambda task: self._fail_if_unfinished(task, None))
        elif hook.blocking:
            pending.append(events.HookCompleted(hook))

    async def _finish_hook(
        self, hook: commands.StartHook, waiting: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        try:
            with self.link.backpressure.deciding(), self.timeout_watchdog.disarm():
                await waiting()
        except (Exception, asyncio.CancelledError):
            # The verdict that the hook did not set, or did not record, is a Deny; the stream reads it so.
            logger.exception("hook %s failed", type(hook).__name__)
            self._shared.failed_closed()
        if hook.blocking:
            await self.server_event(events.HookCompleted(hook))

    @override
    async def handle_hook(self, hook: commands.StartHook) -> None:
        """For the few hooks that the base class starts itself: none of them decides anything here."""

    # --- reading ------------------------------------------------------------------------------------

    @override
    async def handle_connection(self, connection: Connection) -> None:
        try:
            await self._read(connection)
        except Exception:
            logger.exception("a connection could not be read")
            self.fail(FAILED)

    async def _read(self, connection: Connection) -> None:
        reader = self.transports[connection].reader
        assert isinstance(reader, asyncio.StreamReader)
        backpressure = self.link.backpressure
        cancelled: asyncio.CancelledError | None = None
        # An eager task that finds data waiting would run before its maker can register it.
        await asyncio.sleep(0)
        while not self.link.ending.over:
            try:
                if backpressure.may_pause:
                    await backpressure.wait_for_room(connection, self._give_up)
                try:
                    data = await reader.read(65_535)
                except OSError:
                    connection.error = "reset"  # no clean end, whatever came before
                    break
            except asyncio.CancelledError as error:
                cancelled = error
                break
            if not data:
                break
            self.link.deadlines.note_activity()
            backpressure.received(connection, len(data))
            try:
                await self.server_event(events.DataReceived(connection, data))
                if self._is_behind():
                    await self.drain_writers()  # type: ignore[no-untyped-call]
            except asyncio.CancelledError as error:
                cancelled = error
                break
        if connection is self.client:
            # A client that has sent its last byte wants no more of ours (mitmproxy has it so, too).
            for call in tuple(self.link.admission.calls):
                call.client_left()
        await self._finish_connection(connection, cancelled)

    def _give_up(self) -> None:
        self.fail(Deny(Reason.UPSTREAM_TIMEOUT, "no room for what was sent"))

    def _is_behind(self) -> bool:
        """Whether the kernel has not taken everything yet: only then is there something to wait for."""
        return any(
            isinstance(io.writer, asyncio.StreamWriter) and io.writer.transport.get_write_buffer_size()
            for io in self.transports.values()
        )

    async def _finish_connection(
        self, connection: Connection, cancelled: asyncio.CancelledError | None
    ) -> None:
        if cancelled is None:
            connection.state &= ~ConnectionState.CAN_READ
        else:
            connection.state = ConnectionState.CLOSED
        while True:
            try:
                await self.server_event(events.ConnectionClosed(connection))
                break
            except asyncio.CancelledError as error:
                # It was closed while its end waited for a turn. The layers hear of the end all the same, and
                # it leaves in order: else it would look like a failure of ours.
                connection.state = ConnectionState.CLOSED
                if cancelled is not None:
                    raise
                cancelled = error
        if connection.state is ConnectionState.CAN_WRITE:
            # The peer is done sending, and we may still send to it; a cancel ends that (as upstream does).
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                cancelled = error
        io = self.transports.pop(connection, None)
        if io is not None and io.writer is not None:
            if not (self.link.ending.told and connection is self.client):
                io.writer.close()
        if cancelled is not None:
            raise cancelled

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
            self._shared.failed_closed()
            if connection.timestamp_tcp_setup is not None:
                self.fail(FAILED)
            else:
                await self._not_connected(command, UpstreamRefused(Reason.INTERNAL_ERROR, "dialling failed"))

    async def _not_connected(self, command: commands.OpenConnection, refused: UpstreamRefused) -> None:
        connection = command.connection
        self.link.upstreams.failures[connection] = refused
        connection.error = refused.reason.value
        await self.server_event(events.OpenConnectionCompleted(command, refused.reason.value))
        self.transports.pop(connection, None)

    async def _dial_and_serve(self, command: commands.OpenConnection) -> None:
        connection = command.connection
        connection.timestamp_start = time.time()
        reader, writer = await self._shared.upstream.connect(*connection.address)  # type: ignore[misc]
        connection.timestamp_tcp_setup = time.time()
        connection.state = ConnectionState.OPEN
        connection.peername = writer.get_extra_info("peername")
        connection.sockname = writer.get_extra_info("sockname")
        io = server.ConnectionIO(handler=asyncio.current_task(), reader=reader, writer=writer)
        self.transports[connection] = io
        deadline = limit_handshake(connection, io, self.link.upstreams.failures)
        await self.server_event(events.OpenConnectionCompleted(command, None))
        try:
            await self.handle_connection(connection)
        finally:
            deadline.cancel()
            connection.timestamp_end = time.time()
            self.link.parsers.remove(connection)
            self.link.upstreams.forget(connection)
            self._shared.upstream_tls.closed(connection)

    # --- endings ------------------------------------------------------------------------------------

    def fail(self, denial: Deny) -> None:
        """End everything because our side failed, or something took too long. A client that can still read it
        gets the reason; once something has left, neither side gets a clean end (I3)."""
        link = self.link
        if link.ending.over or self.client not in self.transports:
            return
        self._shared.failed_closed()
        link.outbox.drop_upstream()
        try:
            if not any(call.left for call in link.admission.calls):
                link.outbox.flush()
                link.ending.tell(final_response(link, denial))
        except Exception:
            logger.exception("a client could not be informed that its connection failed")
        self.layer = self._closed_layer
        link.ending.abort(denial.reason)

    def _fail_if_unfinished(self, task: asyncio.Task[None], opening: Connection | None) -> None:
        """`task` ended: what waits for something that it did not do must not wait for ever."""
        if task.cancelled():
            unfinished = opening is None or opening in self.transports  # in order it would have left them
        else:
            unfinished = task.exception() is not None
        if unfinished:
            self.fail(FAILED)

    @override
    async def on_timeout(self) -> None:
        self.link.ending.abort(Reason.UPSTREAM_TIMEOUT)
