"""A body that waited for its request to be judged leaves as that request's body, never as the next request.

HTTP/2 says in its frames where a body ends, and its heads need no length. An HTTP/1 upstream reads a body
without a length as another request, which nobody judged (I6, I7).
"""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import h11
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from mitmproxy import http

from coatcheck.planes.mitm import stream
from coatcheck.sigv4.stand_in import environment
from tests.daemon import Sandbox, TestDaemon, running_daemon
from tests.known_secrets import known_secret
from tests.planes.attack import eventually, nothing_is_left
from tests.planes.h2_client import H2Client
from tests.planes.raw_origin import OK, RawOrigin, Visit, running_origin
from tests.planes.wire import tunnel
from tests.sigv4.aws_verifier import verify
from tests.upstreams import UpstreamTls

HOST = "api.github.com"
SMUGGLED = b"GET /admin/delete HTTP/1.1\r\nHost: api.github.com\r\nX-Evil: 1\r\n\r\n"
POLICY = """
version: 1
owner: tests
credentials:
  signer:
    secret: memory:secret/github#token
    hosts: [api.github.com]
    inject: {hmac: {header: X-Sig, message: "{method}\\n{path}\\n{host}\\n{body_sha256}"}}
  quoting:
    secret: memory:secret/github#token
    hosts: [api.github.com]
    inject: {hmac: {header: X-Sig, message: "{path} {body}"}}
  key:
    secret: memory:secret/github#token
    hosts: [api.github.com]
    inject: {header: X-Key}
  form:
    secret: memory:secret/github#token
    hosts: [api.github.com]
    inject: {body: {field: token}}
  aws:
    secret: memory:secret/aws#keys
    hosts: [api.github.com]
    inject: {sigv4: {services: [sqs], regions: [eu-central-1]}}
rules:
"""
RULES = {"hash": ["signer"], "quote": ["quoting"], "form": ["key", "form"], "aws": ["aws"], "stream": ["key"]}
POLICY += "".join(
    f"""  - name: {path}
    hosts: [api.github.com]
    methods: [POST]
    paths: [/{path}]
    http2: true
    credentials: [{", ".join(credentials)}]
"""
    for path, credentials in RULES.items()
)
AWS = known_secret("aws id", prefix="AKIA", length=16), known_secret("aws key", prefix="")


@pytest.fixture
async def origin(upstream_tls: UpstreamTls) -> AsyncIterator[RawOrigin]:
    """It answers once the bytes that look like a request have come, however they are framed."""

    async def behave(visit: Visit, _: bytes) -> None:
        while SMUGGLED not in visit.received:
            if not await visit.read():
                return
        await visit.send(OK)
        await visit.until_closed()

    async with running_origin(upstream_tls) as running:
        running.behave = behave
        yield running


@pytest.fixture
async def daemon(
    tmp_path: Path, all_output: Path, origin: RawOrigin, upstream_tls: UpstreamTls, git_token: str
) -> AsyncIterator[TestDaemon]:
    async with running_daemon(
        all_output / tmp_path.name,
        POLICY,
        {"memory:secret/github#token": git_token, "memory:secret/aws#keys": ":".join(AWS)},
        upstream_ca=upstream_tls.ca,
        connect_to={f"{HOST}:443": origin.port},
    ) as running:
        yield running


@pytest.fixture
async def sandbox(daemon: TestDaemon) -> Sandbox:
    return await daemon.sandbox()


@pytest.fixture
async def client(daemon: TestDaemon, sandbox: Sandbox) -> AsyncIterator[H2Client]:
    async with tunnel(daemon, sandbox, HOST, alpn=("h2",)) as raw:
        made = H2Client(raw.reader, raw.writer, sandbox)
        made.h2.initiate_connection()
        await made.flush()
        running = asyncio.create_task(made.run())
        yield made
        running.cancel()


def fields(sandbox: Sandbox, path: str) -> list[tuple[str, str]]:
    """Header fields with the handle of the rule for `path`."""
    if path == "aws":
        env = environment(sandbox.handles["aws"])
        request = AWSRequest("POST", f"https://{HOST}/aws", data=SMUGGLED)
        pair = env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"]
        SigV4Auth(Credentials(*pair, env["AWS_SESSION_TOKEN"]), "sqs", "eu-central-1").add_auth(request)
        return [(name.lower(), value) for name, value in request.headers.items()]
    credential = RULES[path][0]
    return [("x-key" if credential == "key" else "x-sig", sandbox.handles[credential])]


async def send(client: H2Client, path: str) -> int:
    """A POST without a length whose body is a request, as far as HTTP/1 is concerned."""
    number = client.h2.get_next_available_stream_id()
    pseudo = [(":method", "POST"), (":scheme", "https"), (":authority", HOST), (":path", f"/{path}")]
    client.h2.send_headers(number, pseudo + fields(client.sandbox, path))
    client.h2.send_data(number, SMUGGLED, end_stream=True)
    await client.flush()
    return number


def requests(received: bytes) -> list[tuple[h11.Request, bytes]]:
    """What an HTTP/1 server reads in the bytes of one connection, with another parser than ours."""
    server, found = h11.Connection(h11.SERVER), list[tuple[h11.Request, bytes]]()
    server.receive_data(received)
    while isinstance(request := server.next_event(), h11.Request):
        body = b""
        while isinstance(part := server.next_event(), h11.Data):
            body += part.data
        assert isinstance(part, h11.EndOfMessage), "a body without an end"
        found.append((request, body))
        server.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
        server.send(h11.EndOfMessage())
        server.start_next_cycle()
    return found


def only(origin: RawOrigin) -> tuple[h11.Request, bytes]:
    """The one request that came."""
    (request,) = [request for received in origin.heads for request in requests(received)]
    return request


@pytest.mark.parametrize("path", RULES)
async def test_an_http2_body_is_one_requests_body_on_http1(
    daemon: TestDaemon, client: H2Client, origin: RawOrigin, path: str
) -> None:
    """Signed over it, searched for a second credential, or (`stream`) passed on as it comes."""
    number = await send(client, path)
    await eventually(lambda: number in client.ended)
    assert client.status[number] == "200"
    request, body = only(origin)
    assert (request.target, body) == (f"/{path}".encode(), SMUGGLED)
    framing = dict(request.headers)
    if path == "stream":
        assert framing[b"transfer-encoding"] == b"chunked" and b"content-length" not in framing
    else:
        assert framing[b"content-length"] == b"%d" % len(SMUGGLED) and b"transfer-encoding" not in framing
    if path == "aws":  # the length that was added is no part of what was signed
        headers = [(name.decode(), value.decode()) for name, value in request.headers]
        verify("POST", "/aws", headers, body, *AWS, "", time.time())
    assert [record["path"] for record in daemon.decisions()] == [f"/{path}"]
    client.writer.close()
    await nothing_is_left(daemon)


@pytest.mark.parametrize("path", ["hash", "form"])
@pytest.mark.parametrize("chunked", [True, False])
async def test_an_http1_body_keeps_its_framing(
    daemon: TestDaemon, sandbox: Sandbox, origin: RawOrigin, path: str, chunked: bool
) -> None:
    """One of the two, and the same as came."""
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(SMUGGLED)}"
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED) if chunked else SMUGGLED
    named = "".join(f"{name}: {value}\r\n" for name, value in fields(sandbox, path))
    async with tunnel(daemon, sandbox, HOST) as raw:
        await raw.send(f"POST /{path} HTTP/1.1\r\nHost: {HOST}\r\n{named}{length}\r\n\r\n".encode() + body)
        assert await raw.status() == 200
    request, got = only(origin)
    assert (request.target, got) == (f"/{path}".encode(), SMUGGLED)
    names = {name for name, _ in request.headers} & {b"content-length", b"transfer-encoding"}
    assert names == {b"transfer-encoding" if chunked else b"content-length"}


def _none(_request: http.Request, *, length: int | None) -> None:
    """A head that does not say where its body ends."""


def _both(request: http.Request, *, length: int | None) -> None:
    request.headers["content-length"] = str(length or 0)
    request.headers["transfer-encoding"] = "chunked"


@pytest.mark.parametrize("framing", [_none, _both])
@pytest.mark.parametrize("path", ["hash", "stream"])
async def test_a_head_that_does_not_say_where_its_body_ends_is_never_written(
    daemon: TestDaemon,
    client: H2Client,
    origin: RawOrigin,
    path: str,
    framing: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The writer refuses it, whatever forgot the length: no byte of the request reaches the upstream."""
    monkeypatch.setattr(stream, "frame_body", framing)
    number = await send(client, path)
    await eventually(lambda: client.gone or number in client.ended)
    assert client.status.get(number) != "200"
    assert not any(origin.heads)
    assert daemon.plane is not None and daemon.plane.failures
    await nothing_is_left(daemon)
