"""What the tests of substitution share: one handle, one secret, one request, and how an answer is read."""

import base64
from collections.abc import Mapping

from coatcheck.decision import substitute as core
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.injection import Injector
from coatcheck.decision.message import Destination, Edits, Headers, RequestHead
from coatcheck.decision.policy import Credential, HostPattern, SecretRef
from coatcheck.decision.verdict import Injection

HANDLE = "cch_eyJhbGciOiJFZERTQSJ9.eyJqdGkiOiIxIn0.c2ln_-A"
OTHER = "cch_eyJhbGciOiJFZERTQSJ9.eyJqdGkiOiIyIn0.c2ln_-B"
SECRET = "sk-live-0123456789abcdef/+%"
JSON = (("content-type", "application/json"),)
FORM = (("content-type", "application/x-www-form-urlencoded; charset=UTF-8"),)


def credential(kind: Injector, *, name: str = "api", scrub: bool = True) -> Credential:
    ref = SecretRef("vault", "secret", name, "key")
    return Credential(name, ref, (HostPattern("api.example.com"),), kind, scrub=scrub)


def request(target: str = "/v1", headers: Headers = (), *, body: bool = False) -> RequestHead:
    return RequestHead("POST", target, (("host", "api.example.com"), *headers), end_stream=not body)


def substitute(
    head: RequestHead, body: bytes | None, injections: tuple[Injection, ...], secrets: Mapping[str, str]
) -> Edits | Deny:
    """At some time, to the host that every credential here names."""
    destination = Destination("https", "api.example.com", 443)
    return core.substitute(head, destination, body, injections, secrets, 1_800_000_000.0)


def run(
    kind: Injector,
    head: RequestHead,
    body: bytes | None = None,
    *,
    handle: str | None = HANDLE,
    secret: str = SECRET,
) -> Edits | Deny:
    return substitute(head, body, (Injection(credential(kind), handle),), {"api": secret})


def edits(result: Edits | Deny) -> Edits:
    assert isinstance(result, Edits), result
    return result


def refused(result: Edits | Deny, *, secret: str = SECRET) -> Reason:
    assert isinstance(result, Deny), "it was let through"
    assert HANDLE not in repr(result) and (not secret or secret not in repr(result))
    return result.reason


def basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()
