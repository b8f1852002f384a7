"""An unmodified boto3 with no key in its environment finds some, signs with them, and renews them in time."""

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from coatcheck.client.control import ControlClient
from coatcheck.metadata.handles import Handles
from coatcheck.metadata.http import Client
from coatcheck.metadata.service import MetadataService
from coatcheck.state.sessions import NewSession
from tests.daemon import TestDaemon
from tests.debian import find
from tests.system.e2e import guest_network
from tests.system.e2e.aws_origin import AwsOrigin, aws_keys
from tests.system.e2e.inside import Inside, inside
from tests.system.metadata.metadata_socket import metadata_on

pytestmark = pytest.mark.needs_debian("ip")  # unshare is in every Debian (util-linux is essential)

PROGRAM = """
import boto3, time
session = boto3.Session()
print("method", session.get_credentials().method)
sqs = session.client("sqs", region_name="eu-central-1")
url = "https://sqs.eu-central-1.amazonaws.com/123456789012/queue"
for pause in PAUSES:
    time.sleep(pause)
    print("sent", sqs.send_message(QueueUrl=url, MessageBody="hello")["MessageId"])
    print("key", session.get_credentials().get_frozen_credentials().access_key)
"""

DIRECTLY = """
import urllib.error, urllib.request
for address in ("169.254.169.254", "169.254.170.2"):
    try:
        urllib.request.urlopen(f"http://{address}/latest/meta-data/")
    except urllib.error.HTTPError as error:
        print(error.code, error.headers["Coatcheck-Reason"])
"""


@dataclass(frozen=True, slots=True)
class Guest:
    client: Inside
    variables: Mapping[str, str]
    """What the metadata service adds."""
    metadata: Path
    proxy: Path

    async def python(self, program: str, **variables: str) -> str:
        """Run it where the only network is loopback, with nothing but these variables."""
        unshare = find("unshare")
        assert unshare is not None
        ran = await self.client.run(
            unshare, "--user", "--map-root-user", "--net",
            sys.executable, guest_network.__file__, str(self.metadata), str(self.proxy),
            sys.executable, "-c", program,
            **variables,
        )  # fmt: skip
        assert ran.code == 0, ran.output
        return ran.output


@asynccontextmanager
async def guest_of(
    daemon: TestDaemon, short: Path, home: Path, aws_seconds: float = 3600.0
) -> AsyncIterator[Guest]:
    """A session with a Unix socket, its metadata service, and a home without any key."""
    assert daemon.listeners is not None
    session, _ = daemon.state.open_session(NewSession("acme", "agent", "default"), "uid:0")
    proxy = await daemon.listeners.open_unix(session.id)
    control = ControlClient(daemon.settings.control, timeout=5)
    service = MetadataService(
        control, "sbx_0123456789abcdef", handles=Handles(control, aws_seconds=aws_seconds)
    )
    who = Client("agent", session.id)
    sandbox = await daemon.sandbox(subject="only for its variables")
    without = {
        name: value.replace(sandbox.proxy, "http://127.0.0.1:3128")
        for name, value in sandbox.environment.items()
    }
    client = inside(
        replace(sandbox, minted=(), environment=without | {"PATH": "/usr/bin:/bin:/usr/sbin"}), home
    )
    try:
        async with metadata_on(service, who, short / "metadata") as path:
            yield Guest(client, service.environment(who), path, proxy)
    finally:
        await service.close()


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("g")


async def test_as_a_container_and_it_renews_before_they_expire(
    daemon: TestDaemon, aws: AwsOrigin, short: Path, tmp_path: Path
) -> None:
    """AWS_CONTAINER_CREDENTIALS_FULL_URI and its token. Handles of two seconds: the last request is sent
    when the first one has expired."""
    async with guest_of(daemon, short, tmp_path / "home", aws_seconds=2) as guest:
        output = await guest.python(PROGRAM.replace("PAUSES", "(0, 2.2)"), **guest.variables)
    assert "method container-role" in output
    assert len(aws.messages) == 2 and aws.refused == []
    assert len({line for line in output.splitlines() if line.startswith("key CCHA")}) == 2


async def test_as_an_instance_with_a_role(
    daemon: TestDaemon, aws: AwsOrigin, short: Path, tmp_path: Path
) -> None:
    """IMDSv2 at 169.254.169.254, past the proxy, with no variable that names it, and IMDSv1 switched off."""
    async with guest_of(daemon, short, tmp_path / "home") as guest:
        direct = {name: guest.variables[name] for name in ("NO_PROXY", "no_proxy")}
        output = await guest.python(
            PROGRAM.replace("PAUSES", "(0,)"), **direct, AWS_EC2_METADATA_V1_DISABLED="true"
        )
    assert "method iam-role" in output
    assert len(aws.messages) == 1 and aws.refused == []


async def test_nothing_real_is_in_what_the_service_gives(
    daemon: TestDaemon, short: Path, tmp_path: Path
) -> None:
    """Neither half of the real pair stands in its variables, and there is no key among them."""
    async with guest_of(daemon, short, tmp_path / "home") as guest:
        held = {**guest.client.environment, **guest.variables}
    assert not any(half in value for half in aws_keys() for value in held.values())
    assert not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} & held.keys()


async def test_the_services_addresses_are_no_destination(daemon: TestDaemon, tmp_path: Path) -> None:
    """Through the proxy they are refused for every session: the host's own metadata service is behind
    them."""
    sandbox = await daemon.sandbox()
    client = inside(sandbox, tmp_path / "home")
    output = await client.python(DIRECTLY, NO_PROXY="", no_proxy="")
    assert [line.split()[0] for line in output.splitlines()[:2]] == ["403", "403"], output
