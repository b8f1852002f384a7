"""What the tests of substitution share: one handle, one secret, one request, and how an answer is read."""

import base64

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Edits, Headers, RequestHead
from coatcheck.decision.policy import Credential, HostPattern, InjectionKind, SecretRef
from coatcheck.decision.substitute import substitute
from coatcheck.decision.verdict import Injection

HANDLE = "cch_eyJhbGciOiJFZERTQSJ9.eyJqdGkiOiIxIn0.c2ln_-A"
OTHER = "cch_eyJhbGciOiJFZERTQSJ9.eyJqdGkiOiIyIn0.c2ln_-B"
SECRET = "sk-live-0123456789abcdef/+%"
JSON = (("content-type", "application/json"),)
FORM = (("content-type", "application/x-www-form-urlencoded; charset=UTF-8"),)


def credential(kind: InjectionKind, *, name: str = "api", scrub: bool = True) -> Credential:
    ref = SecretRef("vault", "secret", name, "key")
    return Credential(name, ref, (HostPattern("api.example.com"),), kind, scrub=scrub)


def request(target: str = "/v1", headers: Headers = (), *, body: bool = False) -> RequestHead:
    return RequestHead("POST", target, (("host", "api.example.com"), *headers), end_stream=not body)


def run(
    kind: InjectionKind,
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
