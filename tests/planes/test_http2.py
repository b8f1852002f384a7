"""HTTP/2 where policy asks for it: injection, scrubbing, streams that do not hold each other up."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import h2.errors
import h2.events
import pytest
from mitmproxy.proxy.layers.http._http2 import Http2Connection

from coatcheck.planes.http2 import STREAM_WINDOW
from coatcheck.planes.reading import ROOM
from tests import debian
from tests.daemon import Sandbox, TestDaemon, running_daemon
from tests.planes.attack import eventually, nothing_is_left
from tests.planes.h2_client import H2Client
from tests.planes.h2_origin import H2Origin, H2Peer, h2_origin
from tests.planes.raw_origin import RawOrigin
from tests.planes.wire import http_client, wire
from tests.upstreams import UpstreamTls

POLICY = """
version: 1
owner: tests
credentials:
  github:
    secret: memory:secret/github#token
    hosts: [api.github.com]
    inject: {header: Authorization, value: "Bearer {secret}"}
    env: GITHUB_TOKEN
rules:
  - name: rpc
    hosts: [api.github.com]
    methods: [GET, HEAD, POST]
    http2: true
    credentials: [github]
"""


@pytest.fixture
async def origin(upstream_tls: UpstreamTls) -> AsyncIterator[H2Origin]:
    async with h2_origin(upstream_tls) as running:
        yield running


@pytest.fixture
async def daemon(
    tmp_path: Path, all_output: Path, origin: H2Origin, upstream_tls: UpstreamTls, git_token: str
) -> AsyncIterator[TestDaemon]:
    async with running_daemon(
        all_output / tmp_path.name,
        POLICY,
        {"memory:secret/github#token": git_token},
        upstream_ca=upstream_tls.ca,
        connect_to={"api.github.com:443": origin.port},
    ) as running:
        yield running


@pytest.fixture
async def sandbox(daemon: TestDaemon) -> Sandbox:
    return await daemon.sandbox()


def bearer(sandbox: Sandbox) -> dict[str, str]:
    return {"Authorization": f"Bearer {sandbox.handles['github']}"}


@pytest.fixture
async def client(daemon: TestDaemon, sandbox: Sandbox) -> AsyncIterator[H2Client]:
    async with wire(sandbox) as raw:
        await raw.send(b"CONNECT api.github.com:443 HTTP/1.1\r\n\r\n")
        assert await raw.status() == 200
        await raw.start_tls(daemon.trust.ca, "api.github.com", ("h2",))
        made = H2Client(raw.reader, raw.writer, sandbox)
        made.h2.initiate_connection()
        await made.flush()
        task = asyncio.create_task(made.run())
        yield made
        task.cancel()


async def test_a_request_carries_the_secret_and_its_echo_is_masked(
    daemon: TestDaemon, sandbox: Sandbox, origin: H2Origin, git_token: str
) -> None:
    """In headers, body and trailers (gRPC's status lives there), over HTTP/2 from end to end."""

    async def echo(peer: H2Peer, stream: int) -> None:
        await peer.headers(stream, [(":status", "200"), ("x-echo", git_token)])
        await peer.send(stream, git_token[:10].encode())
        await peer.send(stream, git_token[10:].encode())
        await peer.headers(stream, [("grpc-status", "0"), ("grpc-message", git_token)], end=True)

    origin.behave = echo  # type: ignore[method-assign]
    async with http_client(daemon, sandbox, http2=True) as http:
        answer = await http.get("https://api.github.com/x", headers=bearer(sandbox))
    assert (answer.http_version, answer.status_code) == ("HTTP/2", 200)
    assert ("authorization", f"Bearer {git_token}") in origin.peers[0].requests[1]
    assert git_token not in answer.text + str(answer.headers.raw)
    assert answer.text == "*" * len(git_token)


async def test_trailers_arrive_masked(client: H2Client, origin: H2Origin, git_token: str) -> None:
    """A gRPC client reads its status from them."""
    seen: list[tuple[str, str]] = []

    async def answer(peer: H2Peer, stream: int) -> None:
        await peer.headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
        await peer.send(stream, b"\0\0\0\0\0")
        await peer.headers(stream, [("grpc-status", "0"), ("grpc-message", git_token)], end=True)

    origin.behave = answer  # type: ignore[method-assign]
    real = client._note

    def note(event: h2.events.Event) -> None:
        if isinstance(event, h2.events.TrailersReceived):
            seen.extend((str(name), str(value)) for name, value in event.headers)
        real(event)

    client._note = note  # type: ignore[method-assign]
    stream = client.request()
    await client.flush()
    await eventually(lambda: stream in client.ended)
    assert dict(seen)["grpc-status"] == "0"
    assert dict(seen)["grpc-message"] == "*" * len(git_token)


async def test_one_stream_is_refused_while_others_go_on(client: H2Client, origin: H2Origin) -> None:
    """Each stream has its own verdict; a refusal costs its neighbours nothing."""
    good, bad, later = client.request(), client.request(handle=False), client.request()
    await client.flush()
    await eventually(lambda: {good, bad, later} <= client.ended)
    assert [client.status[stream] for stream in (good, bad, later)] == ["200", "401", "200"]
    assert b"handle_missing" in client.got[bad]
    assert len(origin.peers) == 1 and len(origin.peers[0].requests) == 2


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


async def test_0_10_a_receiver_that_does_not_read_stalls_its_own_stream_only(
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
    link = next(iter(daemon.plane.connections))
    parser = link.parsers[link.client]
    assert isinstance(parser, Http2Connection)
    waiting = sum(len(chunk.data) for chunks in parser.h2_conn.stream_buffers.values() for chunk in chunks)
    assert waiting <= 1_048_576


async def test_0_10_an_upload_to_an_upstream_that_does_not_read_is_held_back(
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


async def test_1_5_an_upstream_that_goes_away_ends_its_streams_uncleanly(
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


async def test_1_5_an_upstream_that_goes_away_while_it_waits_for_credit_ends_its_own_streams_only(
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


async def test_1_5_rapid_resets_end_the_connection(
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


async def test_1_5_extended_connect_is_refused(
    client: H2Client, origin: H2Origin, daemon: TestDaemon
) -> None:
    """RFC 8441 would be a pipe that nobody reads."""
    stream = client.h2.get_next_available_stream_id()
    client.h2.config.validate_outbound_headers = False
    fields = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":authority", "api.github.com"),
        (":path", "/"),
    ]
    client.h2.send_headers(stream, fields)
    await client.flush()
    await eventually(lambda: client.gone or client.status.get(stream) == "403")
    assert not origin.peers


async def test_http2_clients_reach_upstreams_that_speak_http1(
    raw_daemon: TestDaemon, raw_sandbox: Sandbox, raw_origin: RawOrigin
) -> None:
    """notes 0.7: a stream each has a connection of its own; the head is one that HTTP/1 reads in one way."""
    async with http_client(raw_daemon, raw_sandbox, http2=True) as http:
        urls = [f"https://api.github.com/{number}" for number in range(4)]
        answers = await asyncio.gather(*(http.post(url, content=b"x" * 100_000) for url in urls))
    assert {(answer.http_version, answer.text) for answer in answers} == {("HTTP/2", "ok")}
    for head in raw_origin.heads:
        assert head.count(b" HTTP/1.1\r\n") == 1
        assert head.lower().count(b"\r\nhost: api.github.com\r\n") == 1
    await nothing_is_left(raw_daemon)


async def test_http1_clients_reach_upstreams_that_speak_http2(
    daemon: TestDaemon, sandbox: Sandbox, origin: H2Origin, git_token: str
) -> None:
    """Bodies both ways over one kept upstream connection, in chunks where the length is unknown."""

    async def mirror(peer: H2Peer, stream: int) -> None:
        await peer.until_ended(stream)
        await peer.headers(stream, [(":status", "200")])
        await peer.send(stream, b"y" * peer.received[stream], end=True)

    origin.behave = mirror  # type: ignore[method-assign]
    async with http_client(daemon, sandbox) as http:
        for _ in range(3):
            answer = await http.post(
                "https://api.github.com/x", headers=bearer(sandbox), content=b"x" * 1_000_000
            )
            assert (answer.http_version, len(answer.content)) == ("HTTP/1.1", 1_000_000)
    assert len(origin.peers) == 1
    fields = dict(origin.peers[0].requests[1])
    assert fields[":authority"] == "api.github.com" and fields["authorization"] == f"Bearer {git_token}"
    assert not {"host", "connection", "transfer-encoding"} & set(fields)


@pytest.mark.needs_debian("nginx", "curl")
async def test_nginx_speaks_http2_with_curl_through_the_proxy(
    daemon: TestDaemon, sandbox: Sandbox, upstream_tls: UpstreamTls, tmp_path: Path, git_token: str
) -> None:
    """A real server and a real client: 5 MB, HTTP/2 on both sides, with the secret."""
    (tmp_path / "www").mkdir()
    (tmp_path / "www/big").write_bytes(b"n" * 5_000_000)
    port = _free_port()
    user = "user root;" if os.getuid() == 0 else ""
    (tmp_path / "nginx.conf").write_text(
        f"{user} daemon off; pid {tmp_path}/pid; error_log stderr; worker_processes 1; events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {tmp_path}/b; proxy_temp_path {tmp_path}/p;\n"
        f"fastcgi_temp_path {tmp_path}/f; uwsgi_temp_path {tmp_path}/u; scgi_temp_path {tmp_path}/s;\n"
        f"server {{ listen 127.0.0.1:{port} ssl http2; ssl_certificate {upstream_tls.certificate};\n"
        f"ssl_certificate_key {upstream_tls.key}; root {tmp_path}/www;\n"
        f'if ($http_authorization != "Bearer {git_token}") {{ return 401; }} }} }}\n'
    )
    nginx = await asyncio.create_subprocess_exec(
        str(debian.find("nginx")),
        "-c",
        f"{tmp_path}/nginx.conf",
        "-e",
        "stderr",
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await _listens(port)
        assert daemon.plane is not None
        connect_to = daemon.plane.upstream._settings.connect_to
        connect_to["api.github.com:443"] = ("127.0.0.1", port)  # type: ignore[index]
        curl = await asyncio.create_subprocess_exec(
            "curl", "-sS", "--http2", "-x", sandbox.proxy, "--cacert", str(daemon.trust.ca),
            "-H", f"Authorization: Bearer {sandbox.handles['github']}", "-o", "/dev/null",
            "-w", "%{http_code} %{http_version} %{size_download}", "https://api.github.com/big",
            stdout=asyncio.subprocess.PIPE, env={"PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        out, _ = await asyncio.wait_for(curl.communicate(), 20)
        assert out == b"200 2 5000000"
    finally:
        nginx.terminate()
        await nginx.wait()


def _free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


async def _listens(port: int) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except (ConnectionError, ssl.SSLError):
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return
