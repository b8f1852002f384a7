"""An end that nobody takes for a clean one, and a last word that arrives."""

import asyncio

import pytest

from coatcheck.planes.sockets import address_of, answer_and_close, reset


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


async def test_a_last_word_arrives_although_nobody_read_what_was_said_before() -> None:
    """Closing over unread bytes would reset the connection, and take the word back."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer_and_close(reader, writer, b"no")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"x" * 30_000)
        async with asyncio.timeout(5):
            assert await reader.read() == b"no"
            writer.write_eof()
            await writer.drain()
        writer.close()


def test_a_unix_socket_has_a_name_too() -> None:
    """mitmproxy wants a host and a port everywhere."""
    assert address_of("/run/x.sock") == ("unix", 0)
    assert address_of(("::1", 7, 0, 0)) == ("::1", 7)
