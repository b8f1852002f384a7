"""An end that nobody takes for a clean one."""

import asyncio

import pytest

from coatcheck.planes.sockets import address_of, reset


async def test_a_reset_drops_what_is_buffered_and_is_no_clean_end() -> None:
    """The peer reads an error, not an end of file."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 10_000_000)
        reset(writer)
        reset(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)
        writer.close()


def test_a_unix_socket_has_a_name_too() -> None:
    """mitmproxy wants a host and a port everywhere."""
    assert address_of("/run/x.sock") == ("unix", 0)
    assert address_of(("::1", 7, 0, 0)) == ("::1", 7)
