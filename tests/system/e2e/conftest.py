"""A daemon in front of stand-ins for OpenAI, Anthropic and AWS, and a sandbox to run clients in."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from demo.upstreams.server import TlsServer
from tests.bao import bao
from tests.daemon import TestDaemon, running_daemon
from tests.system.e2e.aws_origin import BUCKET_HOST, S3_HOST, SQS_HOST, AwsOrigin, aws_keys, aws_origin
from tests.system.e2e.inside import Inside, inside
from tests.upstreams import UpstreamTls

__all__ = ["bao"]

POLICY = """
version: 1
owner: tests
credentials:
  openai:
    secret: memory:secret/openai#api_key
    hosts: [api.openai.com]
    inject: {header: Authorization, value: "Bearer {secret}"}
    env: OPENAI_API_KEY
    shape: {prefix: sk-}
  anthropic:
    secret: memory:secret/anthropic#api_key
    hosts: [api.anthropic.com]
    inject:
      - {header: X-Api-Key}
      - {header: Authorization, value: "Bearer {secret}"}
    env: ANTHROPIC_API_KEY
    shape: {prefix: sk-ant-}
  aws:
    secret: memory:secret/aws#keys
    hosts: [s3.eu-central-1.amazonaws.com, "*.s3.eu-central-1.amazonaws.com", sqs.eu-central-1.amazonaws.com]
    inject: {sigv4: {services: [s3, sqs], regions: [eu-central-1]}}
rules:
  - name: openai
    hosts: [api.openai.com]
    methods: [GET, POST]
    credentials: [openai]
    websocket: true
  - name: anthropic
    hosts: [api.anthropic.com]
    methods: [GET, POST]
    credentials: [anthropic]
  - name: aws
    hosts: [s3.eu-central-1.amazonaws.com, "*.s3.eu-central-1.amazonaws.com", sqs.eu-central-1.amazonaws.com]
    methods: [GET, HEAD, PUT, POST, DELETE]
    credentials: [aws]
"""


@pytest.fixture
async def aws(upstream_tls: UpstreamTls) -> AsyncIterator[AwsOrigin]:
    """S3 and SQS as far as the tests go; takes what is signed with the real keys alone."""
    async with aws_origin(upstream_tls.certificate, upstream_tls.key) as running:
        yield running


@pytest.fixture
def place(all_output: Path) -> Path:
    """Where a test's daemon keeps everything: searched for secrets at the end of the run, and short, as a
    socket's path below it has 107 bytes: a test's name is not in it."""
    return Path(tempfile.mkdtemp(prefix="", dir=all_output))


@pytest.fixture
async def daemon(
    place: Path,
    origin_server: TlsServer,
    aws: AwsOrigin,
    upstream_tls: UpstreamTls,
    real_keys: dict[str, str],
) -> AsyncIterator[TestDaemon]:
    secrets = {f"memory:secret/{name}#api_key": key for name, key in real_keys.items()}
    secrets["memory:secret/aws#keys"] = ":".join(aws_keys())
    async with running_daemon(
        place,
        POLICY,
        secrets,
        upstream_ca=upstream_tls.ca,
        connect_to={
            "api.openai.com:443": origin_server.port,
            "api.anthropic.com:443": origin_server.port,
            **{f"{host}:443": aws.port for host in (S3_HOST, BUCKET_HOST, SQS_HOST)},
        },
    ) as running:
        yield running


@pytest.fixture
async def client(daemon: TestDaemon, tmp_path: Path) -> Inside:
    """A sandbox of the daemon that a test may run programs in."""
    return inside(await daemon.sandbox(), tmp_path / "home")
