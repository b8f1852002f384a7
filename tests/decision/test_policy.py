"""Default deny: what no rule allows does not leave, and the refusal says what is in the way."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    host_allowed,
    match,
    rules_for_host,
    tunnel_rule,
)
from coatcheck.injectors.header import HeaderInjection

API = (HostPattern("api.example.org"),)
POST = frozenset({"POST"})
GET = frozenset({"GET"})
CHAT = Rule("chat", API, POST, (PathPattern(("v1", "chat")),))
MODELS = Rule("models", API, GET, (PathPattern(("v1", "models"), prefix=True),))
FILES = Rule("files", API, GET, (), ports=frozenset({443, 8443}))
SOCKET = Rule("socket", (HostPattern("ws.example.org"),), GET, (), websocket=True)
DOCS = Rule("docs", (HostPattern("example.org", wildcard=True),), GET, ())
PLAIN = Rule("plain", (HostPattern("old.example.net"),), GET, (), ports=frozenset({80, 443}), plain_http=True)
TUNNEL = Rule("pinned", (HostPattern("pinned.example.net"),), frozenset(), (), tunnel=True)
KEY = Credential("key", SecretRef("vault", "secret", "api", "key"), API, HeaderInjection("authorization"))


def policy(*rules: Rule) -> Policy:
    return Policy("test", "security", "0" * 64, {}, rules)


def ask(
    rules: Policy, url: str, method: str = "GET", headers: tuple[tuple[str, str], ...] = ()
) -> str | tuple[Reason, str | None]:
    """The allowing rule's name, or the refusal's reason and rule."""
    scheme, _, rest = url.partition("://")
    authority, slash, target = rest.partition("/")
    host, _, port = authority.partition(":")
    destination = Destination(scheme, host, int(port or (443 if scheme == "https" else 80)))
    answer = match(rules, destination, RequestHead(method, slash + target, headers))
    return (answer.reason, answer.rule) if isinstance(answer, Deny) else answer.name


ALL = policy(CHAT, MODELS, FILES, SOCKET, DOCS, PLAIN, TUNNEL)
STRICT = policy(CHAT, MODELS)


@pytest.mark.parametrize(
    ("url", "method", "expected"),
    [
        ("https://api.example.org/v1/chat", "POST", "chat"),
        ("https://api.example.org/v1/models", "GET", "models"),
        ("https://api.example.org/v1/models/x/y", "GET", "models"),
        ("https://api.example.org/v1/%7Emodels", "GET", "files"),
        ("https://api.example.org:8443/v1/models", "GET", "files"),
        ("https://a.b.example.org/x", "GET", "docs"),
        ("http://old.example.net/x", "GET", "plain"),
        ("https://other.example.com/", "GET", (Reason.HOST_NOT_ALLOWED, None)),
        ("https://evil-example.org/", "GET", (Reason.HOST_NOT_ALLOWED, None)),
        ("https://example.org/", "GET", (Reason.HOST_NOT_ALLOWED, None)),
        ("https://a.example.org.evil.com/", "GET", (Reason.HOST_NOT_ALLOWED, None)),
        ("https://api.example.org:22/v1/chat", "POST", (Reason.PORT_NOT_ALLOWED, "chat")),
        ("http://api.example.org/v1/chat", "POST", (Reason.PLAIN_HTTP_REFUSED, "chat")),
        ("https://api.example.org/v1/chat", "DELETE", (Reason.METHOD_NOT_ALLOWED, "chat")),
        ("https://api.example.org/v1/chat", "post", (Reason.METHOD_NOT_ALLOWED, "chat")),
        ("https://api.example.org/v1/chat/", "POST", (Reason.PATH_NOT_ALLOWED, "chat")),
        ("https://api.example.org/V1/chat", "POST", (Reason.PATH_NOT_ALLOWED, "chat")),
        ("https://api.example.org/v1/../v1/chat", "POST", (Reason.PATH_FORM_REFUSED, None)),
        ("https://pinned.example.net/", "GET", (Reason.PROTOCOL_REFUSED, "pinned")),
    ],
)
def test_the_first_fitting_rule_answers(url: str, method: str, expected: object) -> None:
    """Else the refusal names the rule that came closest and what it lacks."""
    assert ask(ALL, url, method) == expected


def test_an_empty_policy_denies_all() -> None:
    """No rules, no hosts."""
    assert ask(policy(), "https://api.example.org/") == (Reason.HOST_NOT_ALLOWED, None)
    assert host_allowed(policy(), "api.example.org", 443, True) == Deny(Reason.HOST_NOT_ALLOWED)


@pytest.mark.parametrize("target", ["v1//models", "v1/models;x", "v1/models%3bx", "v1/models//"])
def test_a_path_that_shifts_cannot_slip_past_the_rule_it_is_meant_for(target: str) -> None:
    """It is refused at the first rule that looks at paths, though a broader rule would take it."""
    assert ask(ALL, f"https://api.example.org/{target}") == (Reason.PATH_FORM_REFUSED, "models")
    assert ask(STRICT, f"https://api.example.org/{target}") == (Reason.PATH_FORM_REFUSED, "models")


def test_a_path_that_shifts_passes_where_no_rule_looks_at_paths() -> None:
    """S3 keys and matrix parameters are real."""
    assert ask(ALL, "https://a.example.org/bucket//key;v=1") == "docs"


def test_only_a_websocket_upgrade_on_a_websocket_rule_is_allowed() -> None:
    """`Upgrade: h2c` and doubled headers would leave a connection that nobody reads."""
    websocket, h2c = ("upgrade", "WebSocket"), ("upgrade", "h2c")
    assert ask(ALL, "https://ws.example.org/", headers=(websocket,)) == "socket"
    assert ask(ALL, "https://ws.example.org/") == "socket"
    for headers in ((h2c,), (websocket, h2c), (websocket, websocket), (("upgrade", "websocket, h2c"),)):
        assert ask(ALL, "https://ws.example.org/", headers=headers) == (Reason.PROTOCOL_REFUSED, "socket")
    refused = ask(ALL, "https://api.example.org/v1/models", headers=(websocket,))
    assert refused == (Reason.PROTOCOL_REFUSED, "models")


def test_a_host_is_judged_before_its_certificate_is_made() -> None:
    """`host_allowed` knows hosts, ports and plain HTTP, and nothing more."""
    assert host_allowed(ALL, "api.example.org", 8443, True) is None
    assert host_allowed(ALL, "pinned.example.net", 443, True) is None
    assert host_allowed(ALL, "api.example.org", 22, True) == Deny(Reason.PORT_NOT_ALLOWED)
    assert host_allowed(ALL, "api.example.org", 443, False) == Deny(Reason.PLAIN_HTTP_REFUSED)
    assert host_allowed(ALL, "old.example.net", 80, False) is None
    assert host_allowed(ALL, "evil.test", 443, True) == Deny(Reason.HOST_NOT_ALLOWED)
    assert rules_for_host(ALL, "api.example.org") == (CHAT, MODELS, FILES, DOCS)


def test_tls_is_left_closed_only_where_the_first_rule_says_so() -> None:
    """Everything else is intercepted."""
    assert tunnel_rule(ALL, "pinned.example.net", 443) is TUNNEL
    assert tunnel_rule(ALL, "pinned.example.net", 8443) is None
    assert tunnel_rule(ALL, "api.example.org", 443) is None
    assert tunnel_rule(ALL, "evil.test", 443) is None
    first = replace(TUNNEL, name="opened", tunnel=False, methods=frozenset({"GET"}))
    assert tunnel_rule(Policy("p", "o", "0", rules=(first, TUNNEL)), "pinned.example.net", 443) is None, (
        "in file order: what an earlier rule opens is opened"
    )


HERE = ("https", "api.example.org", 443)
WRONG = Reason.HANDLE_WRONG_HOST


@pytest.mark.parametrize(
    ("credential", "destination", "head", "expected"),
    [
        ({}, HERE, ("GET", "/x"), None),
        ({}, ("https", "evil.example.org", 443), ("GET", "/x"), WRONG),
        ({}, ("http", "api.example.org", 80), ("GET", "/x"), Reason.PLAIN_HTTP_REFUSED),
        ({"plain_http": True}, ("http", "api.example.org", 80), ("GET", "/x"), None),
        ({"methods": POST}, HERE, ("GET", "/x"), WRONG),
        ({"paths": CHAT.paths}, HERE, ("GET", "/v1/chat?x"), None),
        ({"paths": CHAT.paths}, HERE, ("GET", "/v1/x"), WRONG),
        ({"paths": MODELS.paths}, HERE, ("GET", "/v1/models//x"), WRONG),
        ({"paths": MODELS.paths}, HERE, ("GET", "/v1/models/../x"), WRONG),
    ],
)
def test_a_credential_travels_only_where_its_own_policy_says(
    credential: dict[str, object], destination: tuple[str, str, int], head: tuple[str, str], expected: object
) -> None:
    """Hosts, methods, paths and TLS; a wrong place is an alarm."""
    answer = credential_allows(replace(KEY, **credential), Destination(*destination), RequestHead(*head, ()))  # type: ignore[arg-type]
    assert (answer and answer.reason) == expected
    assert answer is None or answer.alarm == (expected is WRONG)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (("x-original-url", "/admin"), (Reason.HEADER_FORM_REFUSED, None)),
        (("x-forwarded-host", "evil.test"), (Reason.HEADER_FORM_REFUSED, None)),
        (("x-forwarded-host", "api.example.org"), "models"),
        (("x-http-method-override", "DELETE"), (Reason.METHOD_NOT_ALLOWED, "chat")),
        (("x-http-method-override", "GET"), "models"),
    ],
)
def test_headers_that_steer_a_server_elsewhere_are_judged_with_the_request(
    header: tuple[str, str], expected: object
) -> None:
    """Another path or host is refused; another method must be allowed like the method itself."""
    assert ask(STRICT, "https://api.example.org/v1/models", headers=(header,)) == expected


def test_a_path_that_shifts_is_told_only_to_who_may_use_the_method() -> None:
    """Else the method, the port or the scheme is what is in the way."""
    assert ask(STRICT, "https://api.example.org/v1//models", "DELETE") == (Reason.METHOD_NOT_ALLOWED, "chat")
    assert ask(STRICT, "https://api.example.org:22/v1//models") == (Reason.PORT_NOT_ALLOWED, "chat")
    assert ask(STRICT, "http://api.example.org/v1//models") == (Reason.PLAIN_HTTP_REFUSED, "chat")


def test_a_credentials_methods_hold_for_overriding_ones_too() -> None:
    """GET that says DELETE is a DELETE where it is honoured."""
    head = RequestHead("GET", "/x", (("x-http-method-override", "DELETE"),))
    denial = credential_allows(replace(KEY, methods=GET), Destination(*HERE), head)
    assert denial == Deny(WRONG, "credential key is not for this method", alarm=True)
    elsewhere = credential_allows(
        replace(KEY, paths=CHAT.paths), Destination(*HERE), RequestHead("GET", "/x", ())
    )
    assert elsewhere == Deny(WRONG, "credential key is not for this path", alarm=True)


def test_a_star_stands_for_no_empty_segment_and_a_prefix_for_what_is_below() -> None:
    """As a policy's reader sees them written."""
    star = PathPattern(("repos", "*", "issues"))
    below = PathPattern(("v1",), prefix=True)
    assert [str(star), str(below)] == ["/repos/*/issues", "/v1/**"]
    assert [star.matches(path) for path in ("/repos/x/issues", "/repos//issues", "/repos/x")] == [
        True,
        False,
        False,
    ]
    assert [below.matches(path) for path in ("/v1", "/v1/", "/v1/a/b", "/v10", "/")] == [True] * 3 + [
        False
    ] * 2
    hosts = (HostPattern("a.example"), HostPattern("a.example", wildcard=True))
    assert [str(host) for host in hosts] == ["a.example", "*.a.example"]
    assert str(KEY.secret) == "vault:secret/api#key"


NAMES = st.lists(
    st.sampled_from(["a", "example", "org", "evil-example", "xexample", "com"]), min_size=1, max_size=4
).map(".".join)


@given(NAMES)
def test_a_suffix_is_matched_at_label_borders_only(name: str) -> None:
    """`*.example.org` means names that end in `.example.org`, and no look-alike."""
    below = name.split(".")[-2:] == ["example", "org"] and name.count(".") >= 2
    assert (ask(policy(DOCS), f"https://{name}/") == "docs") == below
    assert ask(policy(DOCS), f"https://{name}./") == (Reason.HOST_NOT_ALLOWED, None)


SEGMENTS = st.lists(st.sampled_from(["", "a", "b", "*"]), min_size=1, max_size=4)


@given(SEGMENTS.map(tuple), SEGMENTS, st.booleans())
def test_a_path_pattern_fixes_every_segment_it_writes(
    written: tuple[str, ...], parts: list[str], prefix: bool
) -> None:
    """A star stands for exactly one segment that is not empty; only `/**` takes more."""
    matched = PathPattern(written, prefix).matches("/" + "/".join(parts))
    if matched:
        assert len(parts) == len(written) or (prefix and len(parts) > len(written))
        assert all(have == want or (want == "*" and have) for want, have in zip(written, parts, strict=False))
    else:
        assert list(written) != parts
