"""What the tests of re-signing share: clients of a sandbox, and what a plane and AWS do with a request."""

import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Edits, RequestHead
from coatcheck.injectors.sigv4 import SigV4Injection
from coatcheck.sigv4.covered import needs_body_hash
from coatcheck.sigv4.keys import AwsKeys
from coatcheck.sigv4.resign import resign
from coatcheck.sigv4.stand_in import environment
from tests.known_secrets import known_secret
from tests.sigv4.aws_verifier import verify
from tests.sigv4.recording_server import Recording

HANDLE = "cch_eyJhbGciOiJFZERTQSJ9.eyJqdGkiOiIxIn0.c2ln_-A"
OTHER = "cch_eyJhbGciOiJFZERTQSJ9.eyJqdGkiOiIyIn0.c2ln_-B"
LONG_LIVED = AwsKeys(known_secret("aws id", prefix="AKIA", length=16), known_secret("aws key", prefix=""))
TEMPORARY = replace(LONG_LIVED, session_token=known_secret("aws token", prefix="IQoJ/+==", length=200))
ANY = SigV4Injection()
ODD_KEY = "a b/ü+~%.txt"


def client(upstream: Recording, service: str, handle: str = HANDLE, **config: Any) -> Any:
    """A boto3 client as it runs in a sandbox: its keys are what the environment there holds."""
    env = environment(handle)
    make: Any = boto3.client  # its stubs have one overload a service, and none for a name in a variable
    return make(
        service,
        region_name="eu-central-1",
        endpoint_url=upstream.url,
        verify=upstream.ca_file,
        aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
        aws_session_token=env["AWS_SESSION_TOKEN"],
        config=Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}, proxies={}, **config),
    )


def recorded(
    upstream: Recording, call: Callable[..., Any], /, **parameters: Any
) -> tuple[RequestHead, bytes]:
    with pytest.raises(ClientError):
        call(**parameters)
    return upstream.only()


def apply(head: RequestHead, edits: Edits) -> RequestHead:
    """What a plane does: remove, then set, and its own changes, which no signature may depend on."""
    gone = {*edits.remove_headers, *(name for name, _ in edits.set_headers)}
    gone |= {"range", "accept-encoding", "user-agent", "connection", "expect"}
    kept = tuple(pair for pair in head.headers if pair[0] not in gone)
    noise = (("user-agent", "another"), ("accept-encoding", "identity"))
    return replace(head, target=edits.target or head.target, headers=(*kept, *edits.set_headers, *noise))


def check(head: RequestHead, body: bytes, keys: AwsKeys, now: float) -> None:
    verify(
        head.method, head.target, list(head.headers), body,
        keys.access_key_id, keys.secret_access_key, keys.session_token, now,
    )  # fmt: skip


def run(
    upstream: Recording,
    head: RequestHead,
    body: bytes = b"",
    *,
    keys: AwsKeys = TEMPORARY,
    handle: str | None = HANDLE,
    allowed: SigV4Injection = ANY,
    now: float | None = None,
) -> Edits | Deny:
    digest = sha256(body).hexdigest() if needs_body_hash(head) else None
    return resign(
        head,
        upstream.destination,
        digest,
        handle,
        keys,
        time.time() if now is None else now,
        services=allowed.services,
        regions=allowed.regions,
    )


def refused(result: Edits | Deny) -> Reason:
    assert isinstance(result, Deny), "it was signed"
    for value in (HANDLE, TEMPORARY.access_key_id, TEMPORARY.secret_access_key, TEMPORARY.session_token):
        assert value not in repr(result)
    return result.reason
