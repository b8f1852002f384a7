"""A header cannot make an allowed request into another one."""

import pytest

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.policy import (
    Credential,
    HostPattern,
    Policy,
    Rule,
    SecretRef,
    credential_allows,
    match,
)
from coatcheck.decision.steering import _spellings, read_steering
from coatcheck.injectors.header import HeaderInjection

HOSTS = (HostPattern("api.example.org"),)
HERE = Destination("https", "api.example.org", 443)
RULE = Rule("reads", HOSTS, frozenset({"POST", "GET"}), ())
POLICY = Policy("p", "o", "0" * 64, {}, (RULE,))
KEY = Credential(
    "key",
    SecretRef("vault", "secret", "a", "b"),
    HOSTS,
    HeaderInjection("authorization"),
    methods=frozenset({"POST"}),
)


def post(*headers: tuple[str, str]) -> RequestHead:
    return RequestHead("POST", "/v1/x", (("host", "api.example.org"), *headers))


@pytest.mark.parametrize(
    "name",
    [
        "x-http-method-override",
        "x-http-method",
        "x-method-override",
        "x_http_method_override",
        "x-http_method",
    ],
)
def test_an_overriding_method_must_be_allowed_too(name: str) -> None:
    """In any spelling of name and value."""
    for value in ("DELETE", "delete", " Delete\t"):
        assert match(POLICY, HERE, post((name, value))) == Deny(Reason.METHOD_NOT_ALLOWED, rule="reads")
    assert match(POLICY, HERE, post((name, "GET"))) is RULE
    assert match(POLICY, HERE, post((name, "GET"), (name, "DELETE"))) != RULE


@pytest.mark.parametrize("name", ["x-original-url", "x-rewrite-url", "x_original_url", "x-original_uri"])
def test_an_overriding_path_is_refused(name: str) -> None:
    """No rule could tell what it would mean."""
    answer = match(POLICY, HERE, post((name, "/admin")))
    assert isinstance(answer, Deny) and answer.reason is Reason.HEADER_FORM_REFUSED
    assert "/admin" not in answer.detail


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-forwarded-host", "evil.example"),
        ("x-forwarded-host", "api.example.org, evil.example"),
        ("x-forwarded-host", ""),
        ("x_forwarded_host", "evil.example"),
        ("x-original-host", "api.example.org.evil.example"),
        ("x-http-host-override", "evil.example:443"),
        ("x-host", "api.example.org@evil.example"),
        ("x-forwarded-server", "api.example.org."),
        ("forwarded", "for=192.0.2.1;host=evil.example;proto=https"),
        ("forwarded", 'for=a, for=b; HOST = "evil.example"'),
        ("forwarded", 'for="x;host=evil.example"'),
        ("forwarded", "for=a,host=evil.example"),
        ("forwarded", "host=evil.example=x"),
        ("forwarded", "host"),
        ("forwarded", "host=Xapi.example.org"),
    ],
)
def test_a_second_host_must_be_the_first(name: str, value: str) -> None:
    """A front end of many tenants may choose by it."""
    answer = match(POLICY, HERE, post((name, value)))
    assert isinstance(answer, Deny) and answer.reason is Reason.HEADER_FORM_REFUSED
    assert "evil" not in answer.detail


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-forwarded-host", "API.example.org"),
        ("x-forwarded-host", " api.example.org:8443\t"),
        ("forwarded", 'for=192.0.2.1;host="api.example.org"'),
        ("forwarded", 'Host = "api.example.org" ; proto=https'),
        ("forwarded", "for=192.0.2.1"),
        ("x-forwarded-for", "192.0.2.1"),
    ],
)
def test_a_second_host_may_be_the_first(name: str, value: str) -> None:
    """As a development server's proxy adds it."""
    assert match(POLICY, HERE, post((name, value))) is RULE


def test_a_credential_is_not_talked_into_another_method() -> None:
    """Its own methods hold for the override as well."""
    assert credential_allows(KEY, HERE, post()) is None
    refused = credential_allows(KEY, HERE, post(("x-http-method-override", "GET")))
    assert refused is not None and refused.reason is Reason.HANDLE_WRONG_HOST


def test_every_mixture_of_joints_is_a_spelling() -> None:
    """CGI and WSGI read `_` and `-` alike, in each place of a name."""
    assert sorted(_spellings("x-a-b", "y")) == ["x-a-b", "x-a_b", "x_a-b", "x_a_b", "y"]


def test_ordinary_headers_steer_nothing() -> None:
    """One pass, nothing found."""
    steering = read_steering(post(("accept", "*/*"), ("x-method", "DELETE")))
    assert (steering.methods, steering.upgrade, steering.other_path) == (("POST",), (), False)
    assert read_steering(post(("upgrade", "websocket"))).upgrade == ("websocket",)
