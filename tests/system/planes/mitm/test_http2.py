"""HTTP/2 where policy asks for it: injection, scrubbing, refusals, and both versions on either side."""

import asyncio
import os
import ssl
from pathlib import Path

import h2.errors
import h2.events
import pytest

from tests import debian
from tests.daemon import Sandbox, TestDaemon
from tests.planes.attack import eventually, nothing_is_left
from tests.planes.h2_client import H2Client
from tests.planes.h2_daemon import bearer, client, daemon, origin, sandbox
from tests.planes.h2_origin import H2Origin, H2Peer
from tests.planes.raw_origin import RawOrigin
from tests.planes.wire import http_client
from tests.ports import free_port
from tests.upstreams import UpstreamTls

__all__ = ["client", "daemon", "origin", "sandbox"]


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
    real = client.note

    def note(event: h2.events.Event) -> None:
        if isinstance(event, h2.events.TrailersReceived):
            seen.extend((str(name), str(value)) for name, value in event.headers)
        real(event)

    client.note = note  # type: ignore[method-assign]
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


async def test_extended_connect_is_refused(client: H2Client, origin: H2Origin, daemon: TestDaemon) -> None:
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
    """Each stream has a connection of its own; the head is one that HTTP/1 reads in one way."""
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
    port = free_port()
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
        connect_to = daemon.plane.upstream.settings.connect_to
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
