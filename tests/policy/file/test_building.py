"""What is written is what is built."""

import textwrap
from pathlib import Path

import pytest

from coatcheck.decision.approval import Asking, Same, Whose
from coatcheck.decision.filesystem import Filesystem
from coatcheck.decision.message import OriginClass
from coatcheck.decision.policy import (
    HandlesInBody,
    HostPattern,
    Limit,
    LimitKind,
    LimitScope,
    PathPattern,
    SecretRef,
    Shape,
)
from coatcheck.decision.session import DEFAULT_ORIGIN_CLASSES, Isolation
from coatcheck.injectors.basic import BasicInjection
from coatcheck.injectors.body import BodyInjection
from coatcheck.injectors.header import HeaderInjection
from coatcheck.injectors.path import PathInjection
from coatcheck.injectors.query import QueryInjection
from coatcheck.injectors.sigv4 import SigV4Injection
from coatcheck.policy import load_policy
from coatcheck.policy.file.building import DEFAULT_REQUESTS, build_asking
from coatcheck.policy.file.models import AskSpec, InjectSpec

FILE = Path(__file__).parent / "working_everything.yaml"
POLICY = load_policy("everything", FILE.read_bytes())
RULES = {rule.name: rule for rule in POLICY.rules}


def test_every_way_to_inject_is_built() -> None:
    """One value a way."""
    assert {name: credential.inject for name, credential in POLICY.credentials.items()} == {
        "header": HeaderInjection("x-api-key", "{secret}"),
        "basic": BasicInjection("x-access-token"),
        "query": QueryInjection("key"),
        "path": PathInjection("bot"),
        "body": BodyInjection("token", max_bytes=2 << 20),
        "sigv4": SigV4Injection(frozenset({"s3"}), frozenset({"eu-central-1"})),
    }
    with pytest.raises(ValueError, match="names no way"):
        InjectSpec.model_validate({}).build()


def test_a_credential_keeps_all_that_was_written() -> None:
    """And what was not written has the default that denies most."""
    full, bare = POLICY.credentials["header"], POLICY.credentials["basic"]
    assert full.secret == SecretRef("vault", "secret", "team/header", "api_key")
    assert HostPattern("2001:db8::1") in full.hosts and HostPattern("api.example.org", True) in full.hosts
    assert full.methods == {"GET", "POST"} and PathPattern(("v1",), True) in full.paths
    assert full.env == "HEADER_KEY" and full.shape == Shape("ghp_", 36)
    assert full.origins == {OriginClass.SOCKET, OriginClass.MTLS, OriginClass.BEARER}
    assert full.isolation is Isolation.EMULATED
    assert full.handle_required and full.keep_set_cookie and full.revoke_on_theft
    assert not full.scrub and not full.inherit and bare.inherit
    assert bare.origins == DEFAULT_ORIGIN_CLASSES and OriginClass.BEARER not in bare.origins
    assert bare.handle_required and bare.scrub and not bare.plain_http and not bare.keep_set_cookie
    assert bare.isolation is Isolation.NONE and bare.shape is None and bare.env is None
    assert not POLICY.credentials["query"].handle_required
    assert POLICY.credentials["body"].plain_http


def test_a_rule_keeps_all_that_was_written() -> None:
    """Ports follow plain HTTP unless they are given."""
    rule = RULES["the api"]
    assert rule.ports == {443, 8443} and rule.websocket and not rule.http2 and not rule.plain_http
    assert rule.credentials == ("header", "query", "path")
    assert rule.handles_in_body is HandlesInBody.MASK
    assert not rule.scrub and not rule.compression and RULES["git"].scrub and RULES["git"].compression
    assert (rule.max_request_bytes, rule.max_response_bytes) == (10 << 20, 1 << 30)
    assert RULES["git"].ports == {443} and RULES["git"].http2
    assert RULES["old"].ports == {80, 443} and RULES["old"].plain_http
    assert RULES["pinned"].tunnel and RULES["pinned"].methods == frozenset()


def test_whom_a_rule_asks_is_kept_and_nobody_is_the_default() -> None:
    """Seconds, whatever unit was written; what is left out is the shortest and the narrowest."""
    assert RULES["asked about"].asking == Asking(300.0, 3600.0, Same.RULE, Whose.TENANT)
    assert RULES["pinned"].asking is None
    assert build_asking(AskSpec.model_validate({})) == Asking(120.0, 0.0, Same.REQUEST, Whose.SESSION)


def test_limits_are_one_value_a_kind() -> None:
    """A burst that is not written is the rate's own number."""
    session, tenant = LimitScope.SESSION, LimitScope.TENANT
    assert RULES["the api"].limits == (
        Limit(LimitKind.REQUESTS, 60, 60.0, 10, session),
        Limit(LimitKind.CONCURRENT, 4, 1.0, 4, session),
        Limit(LimitKind.REQUESTS, 10, 1.0, 10, tenant),
        Limit(LimitKind.BYTES_UP, 10 << 20, 3600.0, 10 << 20, tenant),
        Limit(LimitKind.BYTES_DOWN, 1 << 30, 86400.0, 1 << 30, tenant),
    )


def test_a_rule_that_says_nothing_of_requests_has_a_generous_limit() -> None:
    """Also one that limits something else; what is written stands as it is, however high."""
    document = """
    version: 1
    owner: security
    rules:
      - {name: free, hosts: [a.example], methods: [GET]}
      - {name: few at once, hosts: [b.example], methods: [GET], limits: {concurrent: 2}}
      - {name: more, hosts: [c.example], methods: [GET], limits: {requests: 1000000/second}}
    """
    free, few, more = load_policy("limits", textwrap.dedent(document).encode()).rules
    assert free.limits == (DEFAULT_REQUESTS,)
    assert few.limits == (Limit(LimitKind.CONCURRENT, 2, 1.0, 2, LimitScope.SESSION), DEFAULT_REQUESTS)
    assert more.limits == (Limit(LimitKind.REQUESTS, 1_000_000, 1.0, 1_000_000, LimitScope.SESSION),)


def test_places_of_the_file_system_are_kept_as_written() -> None:
    """And a policy that says nothing about files restricts none."""
    assert POLICY.filesystem == Filesystem(("/home/agent", "/srv/out"), ("/home/agent/.ssh", "/etc/shadow"))
    assert load_policy("quiet", b"version: 1\nowner: security\n").filesystem is None
