"""A database that is far away: each byte takes its time, there and back."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.ports import free_port


@contextmanager
def far_away(port: int, seconds: float) -> Iterator[int]:
    """The port of a passage to `port` on loopback, with so much latency for a round trip."""
    own, loop, ready = free_port(), asyncio.new_event_loop(), threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                await asyncio.sleep(seconds)  # of the handshake
                there, back = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(_pass(reader, back, seconds / 2), _pass(there, writer, seconds / 2))

        async with await asyncio.start_server(accept, "127.0.0.1", own):
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield own
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """In order, each piece as much later as any other."""
    loop = asyncio.get_running_loop()
    try:
        while data := await reader.read(65_536):
            loop.call_later(seconds, _write, writer, data)
    except OSError:
        pass
    loop.call_later(seconds, writer.close)


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if not writer.is_closing():
        writer.write(data)
