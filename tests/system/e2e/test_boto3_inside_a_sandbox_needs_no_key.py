"""An unmodified boto3 inside a sandbox, with no key in its environment, signs with what the metadata service
gives it, and is signed again with the real keys on its way out."""

import io
import tarfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from coatcheck.client.sandbox import SandboxClient
from tests.daemon import TestDaemon
from tests.system.e2e.aws_origin import AwsOrigin, aws_keys

pytestmark = pytest.mark.needs_debian("bwrap", "runc")

PACKAGES = ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "urllib3", "six")
DATA = ("s3", "sqs", "_retry.json", "endpoints.json", "partitions.json", "sdk-default-configuration.json")
"""Of botocore's hundred megabytes."""
PROGRAM = """
import boto3, os
assert not any(name.startswith("AWS_") and "KEY" in name for name in os.environ)
session = boto3.Session()
print("method", session.get_credentials().method)
sqs = session.client("sqs", region_name="eu-central-1")
url = "https://sqs.eu-central-1.amazonaws.com/123456789012/queue"
print("sent", sqs.send_message(QueueUrl=url, MessageBody="hello")["MessageId"])
"""


def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = Path(member.name).parts
    kept = parts[:2] != ("botocore", "data") or len(parts) == 2 or parts[2] in DATA
    return member if kept and "__pycache__" not in parts else None


def library() -> bytes:
    """The packages as they are installed for the tests; all of them are Python alone."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for name in PACKAGES:
            spec = find_spec(name)
            assert spec is not None and spec.origin is not None
            origin = Path(spec.origin)
            place = origin.parent if origin.name == "__init__.py" else origin
            archive.add(place, arcname=place.name, filter=wanted)
    return packed.getvalue()


async def test_it_finds_some_and_the_upstream_sees_the_real_ones(daemon: TestDaemon, aws: AwsOrigin) -> None:
    """By the variables that the sandbox has anyway."""
    asked: dict[str, Any] = {
        "tenant": "acme",
        "subject": "agent",
        "policy": "default",
        "backend": "namespace",
    }
    async with SandboxClient(daemon.settings.control) as client, await client.create(**asked) as sandbox:
        await sandbox.write_file("/home/agent/library.tar.gz", library())
        unpacked = await sandbox.run(["tar", "xzf", "library.tar.gz"])
        assert unpacked.exit_code == 0, unpacked.stderr
        done = await sandbox.run(["python3", "-c", PROGRAM], environment={"PYTHONPATH": "/home/agent"})
        held = await sandbox.run(["env"])
    assert done.exit_code == 0, done.stderr.decode()
    assert b"method container-role" in done.stdout and b"sent " in done.stdout
    assert len(aws.messages) == 1 and aws.refused == []
    assert not any(half.encode() in held.stdout + done.stdout for half in aws_keys())
