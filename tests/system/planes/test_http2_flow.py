"""HTTP/2's streams: none holds up another, none is kept too long, none ends clean that was cut."""

import asyncio

import h2.errors
import h2.events
import pytest
from mitmproxy.proxy.layers.http._http2 import Http2Connection

from coatcheck.planes.mitm.backpressure import ROOM
from coatcheck.planes.mitm.http2 import STREAM_WINDOW
from tests.daemon import Sandbox, TestDaemon
from tests.planes.attack import eventually, nothing_is_left
from tests.planes.h2_client import H2Client
from tests.planes.h2_daemon import client, daemon, origin, sandbox
from tests.planes.h2_origin import H2Origin, H2Peer

__all__ = ["client", "daemon", "origin", "sandbox"]


@pytest.mark.parametrize("size", [1_000, 3_000_000])
async def test_uploads_and_downloads_arrive_whole(
    client: H2Client, origin: H2Origin, daemon: TestDaemon, size: int
) -> None:
    """Bodies far larger than every window, both ways, and no credit is lost: it works again and again."""

    async def mirror(peer: H2Peer, stream: int) -> None:
        await peer.until_ended(stream)
        await peer.headers(stream, [(":status", "200")])
        await peer.send(stream, b"y" * peer.received[stream], end=True)

    origin.behave = mirror  # type: ignore[method-assign]
    for _ in range(2):
        stream = client.request("POST", end=False)
        await client.upload(stream, size)
        await eventually(lambda stream=stream: stream in client.ended, 10)  # type: ignore[misc]
        assert client.got[stream] == b"y" * size


async def test_both_directions_full_at_once_do_not_hold_each_other_up(
    client: H2Client, origin: H2Origin
) -> None:
    """A bidirectional stream that echoes: were reading paused, neither side's credit would be read."""

    async def echo(peer: H2Peer, stream: int) -> None:
        await peer.headers(stream, [(":status", "200")])
        sent = 0
        while stream not in peer.ended or sent < peer.received[stream]:
            if sent < peer.received[stream]:
                more = min(16_384, peer.received[stream] - sent)
                await peer.send(stream, b"z" * more)
                sent += more
            else:
                await asyncio.sleep(0.001)
        await peer.send(stream, b"", end=True)

    origin.behave = echo  # type: ignore[method-assign]
    stream = client.request("POST", end=False)
    await client.upload(stream, 4_000_000)
    await eventually(lambda: stream in client.ended, 20)
    assert len(client.got[stream]) == 4_000_000


async def test_a_receiver_that_does_not_read_stalls_its_own_stream_only(
    client: H2Client, origin: H2Origin, daemon: TestDaemon
) -> None:
    """What waits for it in our memory is bounded, and its neighbours' streams flow on."""

    async def endless(peer: H2Peer, stream: int) -> None:
        await peer.headers(stream, [(":status", "200")])
        await peer.send(stream, b"y" * 4_000_000, end=True)

    origin.behave = endless  # type: ignore[method-assign]
    stuck = client.request()
    client.held.add(stuck)
    client.h2.increment_flow_control_window(8_000_000)
    await client.flush()
    await eventually(lambda: len(client.got.get(stuck, b"")) == 65_535)
    other = client.request()
    await client.flush()
    await eventually(lambda: other in client.ended, 10)
    assert len(client.got[other]) == 4_000_000
    assert len(client.got[stuck]) == 65_535
    assert daemon.plane is not None
    link = next(iter(daemon.plane.connections)).link
    parser = link.parsers.by_connection[link.client]
    assert isinstance(parser, Http2Connection)
    waiting = sum(len(chunk.data) for chunks in parser.h2_conn.stream_buffers.values() for chunk in chunks)
    assert waiting <= 1_048_576


async def test_an_upload_to_an_upstream_that_does_not_read_is_held_back(
    client: H2Client, origin: H2Origin, daemon: TestDaemon
) -> None:
    """The client runs out of credit instead of filling our memory; its other streams go on."""

    async def behave(peer: H2Peer, stream: int) -> None:
        if stream == 1:
            peer.acknowledges = False
            await asyncio.sleep(60)
        await peer.headers(stream, [(":status", "200")], end=True)

    origin.behave = behave  # type: ignore[method-assign]
    stream = client.request("POST", end=False)
    task = asyncio.create_task(client.upload(stream, 8_000_000))
    await eventually(lambda: bool(origin.peers) and origin.peers[0].received.get(1) == 65_535)
    await asyncio.sleep(0.2)
    assert client.uploaded[stream] <= 65_535 + ROOM + STREAM_WINDOW
    other = client.request()
    await client.flush()
    await eventually(lambda: other in client.ended)
    assert client.status[other] == "200"
    task.cancel()


async def test_revocation_resets_every_stream(
    client: H2Client, origin: H2Origin, daemon: TestDaemon, sandbox: Sandbox
) -> None:
    """I5: open streams end without END_STREAM on either side."""

    async def endless(peer: H2Peer, stream: int) -> None:
        await peer.headers(stream, [(":status", "200")])
        while True:
            await peer.send(stream, b"tick")
            await asyncio.sleep(0.01)

    origin.behave = endless  # type: ignore[method-assign]
    streams = [client.request() for _ in range(5)]
    await client.flush()
    await eventually(lambda: all(client.got.get(stream) for stream in streams))
    await asyncio.to_thread(daemon.state.revoke, sandbox.session.id, "test")
    await eventually(lambda: client.gone or set(client.reset) >= set(streams))
    assert not client.ended
    await nothing_is_left(daemon)
    await eventually(lambda: origin.peers[0].reader.at_eof() or bool(origin.peers[0].reader.exception()))


async def test_a_stream_that_the_client_cancels_is_cancelled_upstream(
    client: H2Client, origin: H2Origin, daemon: TestDaemon
) -> None:
    """The upstream learns of it, the others go on, and no call is left."""

    async def silent(peer: H2Peer, stream: int) -> None:
        await peer.headers(stream, [(":status", "200")])
        if stream > 1:
            await peer.send(stream, b"ok", end=True)

    origin.behave = silent  # type: ignore[method-assign]
    stream = client.request()
    await client.flush()
    await eventually(lambda: stream in client.status)
    client.h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
    other = client.request()
    await client.flush()
    await eventually(lambda: other in client.ended and 1 in origin.peers[0].reset)
    assert not daemon.exchange.calls


async def test_an_upstream_that_goes_away_ends_its_streams_uncleanly(
    client: H2Client, origin: H2Origin
) -> None:
    """mitmproxy ends all of them at GOAWAY; none of them may look complete, and the next dials anew."""

    async def leaving(peer: H2Peer, stream: int) -> None:
        await peer.headers(stream, [(":status", "200")])
        await peer.send(stream, b"part")
        if len(origin.peers) == 1:
            peer.h2.close_connection()
            await peer.flush()
        else:
            await peer.send(stream, b"", end=True)

    origin.behave = leaving  # type: ignore[method-assign]
    stream = client.request()
    await client.flush()
    await eventually(lambda: stream in client.reset)
    assert stream not in client.ended
    again = client.request()
    await client.flush()
    await eventually(lambda: again in client.ended)


async def test_an_upstream_that_goes_away_while_it_waits_for_credit_ends_its_own_streams_only(
    client: H2Client, origin: H2Origin
) -> None:
    """The credit that it was owed dies with it, and nothing else."""

    async def behave(peer: H2Peer, stream: int) -> None:
        await peer.headers(stream, [(":status", "200")])
        if len(origin.peers) == 1:
            filling = asyncio.create_task(peer.send(stream, b"y" * 4_000_000))
            await asyncio.sleep(0.2)
            filling.cancel()
            peer.writer.transport.abort()
        else:
            await peer.send(stream, b"ok", end=True)

    origin.behave = behave  # type: ignore[method-assign]
    stuck = client.request()
    client.held.add(stuck)
    client.h2.increment_flow_control_window(1_000_000)
    await client.flush()
    await eventually(lambda: stuck in client.reset)
    again = client.request()
    await client.flush()
    await eventually(lambda: again in client.ended)
    assert not client.gone


async def test_rapid_resets_end_the_connection(
    client: H2Client, origin: H2Origin, daemon: TestDaemon
) -> None:
    """CVE-2023-44487: cancelling costs the client nothing, so it is bounded."""
    for _ in range(300):
        stream = client.request()
        client.h2.reset_stream(stream)
    try:
        await client.flush()
    except OSError:
        pass
    await eventually(lambda: client.gone)
    await nothing_is_left(daemon)
