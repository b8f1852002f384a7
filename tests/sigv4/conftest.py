"""A server that records what clients sign, and one good request to spoil."""

from collections.abc import Iterator

import pytest

from coatcheck.decision.message import RequestHead
from tests.sigv4.recording_server import Recording, recording_server
from tests.sigv4.signing import client, recorded


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    with recording_server(tmp_path_factory.mktemp("aws")) as recording:
        yield recording


@pytest.fixture(scope="module")
def listing(upstream: Recording) -> RequestHead:
    """One good request to spoil."""
    head, _ = recorded(upstream, client(upstream, "s3").list_objects_v2, Bucket="b", Prefix="p")
    return head
