"""A header cannot make an allowed request into another one."""

from dataclasses import replace

import pytest

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.policy import (
    Credential,
    HostPattern,
    PathPattern,
    Policy,
    Rule,
    SecretRef,
    credential_allows,
    match,
)
from coatcheck.decision.steering import ORDINARY, Kind, kind_of, read_steering
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


PATHS = (
    *("x-original-url", "x-rewrite-url", "x_original_url", "x-original_uri", "x-forwarded-uri"),
    *("x-envoy-original-path", "x-request-uri", "x-proxy-url"),
)
NARROW = replace(RULE, name="narrow", paths=(PathPattern(("v1",), prefix=True),))


@pytest.mark.parametrize("name", PATHS)
def test_an_overriding_path_must_be_allowed_too(name: str) -> None:
    """Whatever the server makes of it. Where every path is allowed, it may be any; another host it may not
    be."""
    narrow = replace(POLICY, rules=(NARROW,))
    for value in (
        "/admin",
        "https://api.example.org/admin",
        "/v1/../admin",
        "admin",
        "",
        "//evil.example/v1/x",
    ):
        answer = match(narrow, HERE, post((name, value)))
        assert isinstance(answer, Deny) and answer.reason is Reason.HEADER_FORM_REFUSED
        assert "admin" not in answer.detail and "evil" not in answer.detail
    assert match(narrow, HERE, post((name, "/v1/y?z"))) is NARROW
    assert match(POLICY, HERE, post((name, "/admin"))) is RULE
    assert match(POLICY, HERE, post((name, "https://evil.example/v1/x"))) != RULE


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


@pytest.mark.parametrize("name", ["x-original-url", "x_original_url", "x-original_url", "x.original.url"])
def test_names_are_compared_by_their_words(name: str) -> None:
    """CGI and WSGI read `_` and `-` alike, in each place of a name, and some servers every other sign."""
    assert kind_of(name) is Kind.PATH


def test_ordinary_headers_steer_nothing() -> None:
    """One pass, nothing found; and the shortcut for common names changes no answer."""
    assert read_steering(HERE, post(("accept", "*/*"), ("x-method", "fast"))) is None
    assert [name for name in ORDINARY if kind_of(name) is not None] == []
    steering = read_steering(HERE, post(("upgrade", "websocket")))
    assert steering is not None and steering.upgrade == ("websocket",)
