"""In the supervisor: keeps the end of what a guest's kernel printed, to show why a boot failed. The guest
controls it."""

import asyncio
import contextlib
import socket

KEPT_BYTES = 64 * 1024
"""A whole boot with all messages has 20 KiB. Only the end is kept: a flood fills nothing."""
TOLD_LINES = 8


class Console:
    """The host's end of it, read as long as it is open: a full one would slow the guest down."""

    def __init__(self) -> None:
        self._content = bytearray()
        self._socket: socket.socket | None = None
        self._reading: asyncio.Task[None] | None = None

    def open(self) -> socket.socket:
        """The end that QEMU gets; the caller closes its own copy."""
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        self._reading = asyncio.create_task(self._read(self._socket))
        return theirs

    def text(self) -> str:
        """What is kept, without what could move a terminal's cursor or colour it."""
        text = self._content.decode("ascii", "replace").replace("\r\n", "\n")
        return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)

    def tail(self) -> str:
        """The last lines, for an error message."""
        lines = [line for line in self.text().splitlines() if line.strip()]
        return "\n".join(line[:200] for line in lines[-TOLD_LINES:])

    def last(self, words: str) -> str:
        """The last line with `words` in it, from there on; empty if there is none."""
        found = self.text().rpartition(words)
        return (found[1] + found[2].partition("\n")[0])[:200] if found[1] else ""

    async def close(self) -> None:
        """Idempotent; what was read can still be asked for."""
        if self._reading is not None and self._socket is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._socket.close()

    async def _read(self, source: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while received := await loop.sock_recv(source, 16384):
                self._content += received
                del self._content[:-KEPT_BYTES]
