"""A TLS origin that plays S3 and SQS: every request's signature is verified as AWS documents it."""

import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from aiohttp import web

from tests.known_secrets import known_secret
from tests.sigv4.aws_verifier import Rejected, verify

S3_HOST = "s3.eu-central-1.amazonaws.com"
BUCKET_HOST = "stories.s3.eu-central-1.amazonaws.com"
SQS_HOST = "sqs.eu-central-1.amazonaws.com"


def aws_keys() -> tuple[str, str]:
    """The only key pair that the origin takes: access key id and secret access key."""
    return known_secret("e2e aws id", prefix="AKIA", length=16), known_secret("e2e aws key", prefix="")


@dataclass
class AwsOrigin:
    """Where it listens, what it took, and why it refused what it did not."""

    port: int = 0
    taken: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.raw_headers]
        try:
            verify(request.method, request.raw_path, headers, body, *aws_keys(), "", time.time())
        except (Rejected, KeyError) as why:
            self.refused.append(f"{request.method} {request.path}: {why!r}")
            return web.Response(status=403, text=f"<Error><Code>{escape(str(why))}</Code></Error>")
        self.taken.append(f"{request.method} {request.host}{request.path}")
        if request.host == SQS_HOST:
            return await self._sqs(request)
        return self._s3(request, body)

    def _s3(self, request: web.Request, body: bytes) -> web.Response:
        if request.query.get("list-type") == "2":
            keys = "".join(f"<Contents><Key>{escape(key)}</Key></Contents>" for key in self.objects)
            return web.Response(
                content_type="application/xml", text=f"<ListBucketResult>{keys}</ListBucketResult>"
            )
        key = request.path.removeprefix("/")
        if request.method == "PUT":
            self.objects[key] = _unchunked(request, body)
            return web.Response(headers={"ETag": '"1"'})
        if key not in self.objects:
            return web.Response(status=404, text="<Error><Code>NoSuchKey</Code></Error>")
        return web.Response(body=self.objects[key], headers={"ETag": '"1"'})

    async def _sqs(self, request: web.Request) -> web.Response:
        self.messages.append(await request.json())
        return web.json_response({"MessageId": "m-1"}, content_type="application/x-amz-json-1.0")


def _unchunked(request: web.Request, body: bytes) -> bytes:
    """The object in an `aws-chunked` upload, whose chunks may end with a checksum."""
    if "aws-chunked" not in request.headers.get("Content-Encoding", ""):
        return body
    found = b""
    while True:
        line, _, body = body.partition(b"\r\n")
        size = int(line.split(b";")[0], 16)
        if not size:
            return found
        found, body = found + body[:size], body[size + 2 :]


@asynccontextmanager
async def aws_origin(certificate: Path, key: Path) -> AsyncIterator[AwsOrigin]:
    origin = AwsOrigin()
    app = web.Application(client_max_size=16 << 20)
    app.router.add_route("*", "/{path:.*}", origin.handle)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    origin.port = runner.addresses[0][1]
    try:
        yield origin
    finally:
        await runner.cleanup()
