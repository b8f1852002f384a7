"""A request is judged by the strictest of all readings that it has: what it declares, and how it may be
spelt."""

import time
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coatcheck.decision.approval import Asking, Same, Whose
from coatcheck.decision.decide import DecisionContext, Identified, NeedBody, decide
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.handle import Claims
from coatcheck.decision.injection import Injector
from coatcheck.decision.message import Destination, Headers, Origin, OriginClass, Peer, RequestHead
from coatcheck.decision.path import canonical_path, spellings
from coatcheck.decision.policy import (
    Credential,
    HandlesInBody,
    HostPattern,
    Limit,
    LimitKind,
    LimitScope,
    PathPattern,
    Policy,
    Rule,
    SecretRef,
    match,
)
from coatcheck.decision.ratelimit import bucket_key
from coatcheck.decision.session import Isolation, Now, Session
from coatcheck.injectors.body import BodyInjection
from coatcheck.injectors.header import HeaderInjection
from coatcheck.policy.file.fields import path_pattern

HOST = "api.example.org"
HERE = Destination("https", HOST, 443)
LIMIT = Limit(LimitKind.REQUESTS, 5, 60.0, 5, LimitScope.SESSION)
ASKING = Asking()
ALL = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})


def rule(name: str, *paths: str, methods: str = "GET POST", **terms: object) -> Rule:
    patterns = tuple(map(path_pattern, paths))
    return replace(Rule(name, (HostPattern(HOST),), frozenset(methods.split()), patterns), **terms)  # type: ignore[arg-type]


def policy(*rules: Rule, **credentials: Credential) -> Policy:
    return Policy("p", "o", "0", credentials, rules)


def ask(rules: Policy, target: str, *headers: tuple[str, str], method: str = "POST") -> Rule | Deny:
    return match(rules, HERE, RequestHead(method, target, headers))


def names(answer: Rule | Deny) -> str:
    assert isinstance(answer, Rule), answer
    return answer.names


BROAD = rule("broad", methods="GET HEAD POST PUT DELETE", websocket=True)
MERGE = rule("merge", "/v1/merge", asking=ASKING, limits=(LIMIT,))
BOTH = policy(MERGE, BROAD)


# --- spellings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        "/v1/merge/",
        "/V1/Merge",
        "/v1/MERGE?x=1",
        "/v1%2Fmerge",
        "/v1/merge.",
        "/v1/merge%20",
        "/v1/merge.json",
        "/v1/merge.JSON/",
        "/v1/merge.msgpack",
        "/v1/merge%3Fx=1",
        "/v1/merge%23x",
        "/v1/%EF%BD%8Derge",
        "/v1/mer%E2%80%8Cge",
        "/v1/me%C2%ADrge",
    ],
)
def test_a_spelling_that_servers_take_for_the_same_does_not_slip_past_a_rule(target: str) -> None:
    """The broad rule lets it out, as before; the narrow one's question and limit hold as well. An escaped
    slash is declared by no rule, so it does not leave at all."""
    answer = ask(BOTH, target)
    if "%2F" in target:
        assert isinstance(answer, Deny) and answer.reason is Reason.PATH_FORM_REFUSED
        return
    assert names(answer) == "broad + merge"
    assert isinstance(answer, Rule) and answer.asking == ASKING
    assert [(each.of, each.count) for each in answer.limits] == [("merge", 5)]


def test_its_limit_is_the_narrow_rules_own_bucket() -> None:
    """Or spelling it in turns would double the limit."""
    answer = ask(BOTH, "/v1/merge/")
    assert isinstance(answer, Rule)
    session = make_session(frozenset())
    assert bucket_key(answer.limits[0], session, answer) == bucket_key(LIMIT, session, MERGE)


@pytest.mark.parametrize(
    "target", ["/v1/merges", "/v1/merge/x", "/v2/merge", "/v1/merge.not-a-format", "/v1", "/v1/x.merge"]
)
def test_another_path_is_another_path(target: str) -> None:
    """Nothing is added to what is not the same."""
    assert ask(BOTH, target) is BROAD


def test_a_spelling_is_not_refused_where_its_plain_form_would_be_and_allows_nothing() -> None:
    """It only adds."""
    alone = policy(MERGE)
    for target in ("/v1/merge/", "/V1/merge", "/v1/merge.json"):
        answer = ask(alone, target)
        assert isinstance(answer, Deny) and answer.reason is Reason.PATH_NOT_ALLOWED


def test_an_exception_that_stands_first_stays_one() -> None:
    """Who writes a narrow rule above a rule that asks means it. Its spellings fall to the rule below, as
    written."""
    exempt = rule("status", "/v1/status")
    rest = rule("rest", "/v1/**", asking=ASKING)
    both = policy(exempt, rest)
    assert ask(both, "/v1/status") is exempt
    assert names(ask(both, "/v1/Status")) == "rest + status"
    assert names(ask(both, "/v1/status/")) == "rest + status"


def test_a_rule_below_counts_where_the_request_fits_it_by_spelling_alone() -> None:
    """`/v1/Merge` is written above, and `/v1/merge` is what the server makes of it."""
    above = rule("above", "/v1/Merge")
    answer = ask(policy(above, MERGE), "/v1/Merge")
    assert names(answer) == "above + merge" and isinstance(answer, Rule) and answer.asking


def test_head_is_taken_for_get() -> None:
    """Frameworks run the GET handler and drop the body."""
    reads = rule("reads", "/v1/merge", methods="GET", asking=ASKING)
    assert names(ask(policy(reads, BROAD), "/v1/merge", method="HEAD")) == "broad + reads"
    for shifting in ("/v1//merge", "/v1/merge;x"):
        answer = ask(policy(reads, BROAD), shifting, method="HEAD")
        assert isinstance(answer, Deny) and answer.reason is Reason.PATH_FORM_REFUSED
        assert (
            ask(policy(rule("posts", "/v1/merge", methods="POST"), BROAD), shifting, method="HEAD") is BROAD
        )
    heads = rule("heads", "/v1/merge", methods="HEAD")
    assert ask(policy(heads, reads, BROAD), "/v1/merge", method="HEAD") is heads


def test_terms_are_the_strictest_of_all() -> None:
    """Sizes, what a body may hold, and what an answer covers."""
    strict = rule(
        "strict",
        "/x",
        max_request_bytes=10,
        handles_in_body=HandlesInBody.REFUSE,
        asking=Asking(60.0, 900.0, Same.REQUEST, Whose.TENANT),
    )
    wide = rule(
        "wide",
        max_response_bytes=7,
        max_request_bytes=99,
        handles_in_body=HandlesInBody.MASK,
        asking=Asking(30.0, 60.0, Same.RULE, Whose.SUBJECT),
    )
    answer = ask(policy(strict, wide), "/X")
    assert isinstance(answer, Rule)
    assert (answer.max_request_bytes, answer.max_response_bytes) == (10, 7)
    assert answer.handles_in_body is HandlesInBody.REFUSE
    assert answer.asking == Asking(30.0, 60.0, Same.REQUEST, Whose.SUBJECT)


def test_of_two_limits_per_credential_the_stricter_holds() -> None:
    """In whichever rule it stands."""
    few, many = (replace(LIMIT, per=LimitScope.CREDENTIAL, count=n, burst=n) for n in (1, 100))
    for narrow, wide in ((few, many), (many, few)):
        answer = ask(policy(rule("narrow", "/x", limits=(narrow,)), rule("wide", limits=(wide,))), "/X")
        assert isinstance(answer, Rule) and [(each.count, each.burst) for each in answer.limits] == [(1, 1)]


def test_what_is_limited_per_credential_is_spent_once() -> None:
    """It is one bucket for all rules."""
    per = replace(LIMIT, per=LimitScope.CREDENTIAL)
    narrow, wide = rule("narrow", "/x", limits=(per, LIMIT)), rule("wide", limits=(per,))
    answer = ask(policy(narrow, wide), "/X")
    assert isinstance(answer, Rule)
    assert [(each.per, each.of) for each in answer.limits] == [
        (LimitScope.SESSION, "narrow"),
        (LimitScope.CREDENTIAL, ""),
    ]


# --- what a request declares ---------------------------------------------------------------------------


def test_an_override_does_not_slip_past_the_rule_of_its_method() -> None:
    """Nor past the one of the method that it came with: no support in the server is needed for that."""
    posts = rule("posts", "/v1/merge", methods="POST", asking=ASKING)
    deletes = rule("deletes", "/v1/merge", methods="DELETE", limits=(LIMIT,))
    answer = ask(policy(posts, deletes, BROAD), "/v1/merge", ("x-http-method-override", "DELETE"))
    assert names(answer) == "posts + deletes"
    assert names(ask(policy(posts, BROAD), "/v1/merge", ("x-http-method-override", "PUT"))) == "posts + broad"
    assert (
        names(ask(policy(deletes, BROAD), "/v1/merge", ("x-original-method", "delete"))) == "broad + deletes"
    )


@pytest.mark.parametrize(
    "target",
    [
        "/v1/merge?_method=delete",
        "/v1/merge?a=b&_Method=DELETE",
        "/v1/x?%5fmethod=PATCH",
        "/v1/x?_HttpMethod=PATCH",
        "/v1/x?.method=PATCH",
        "/v1/x?+_method=PATCH",
        "/v1/x?%5Bmethod=PATCH",
        "/v1/x?_method%00x=PATCH",
        "/v1/x?a=b;_method=PATCH",
        f"/v1/x?{40 * '%20'}_method=PATCH",
        f"/v1/x?_method%00{100 * 'x'}=PATCH",
        "/v1/x?x-http-method-override=PATCH",
    ],
)
def test_an_override_in_the_query_counts(target: str) -> None:
    """WordPress, Express, Salesforce and Symfony read one there."""
    posts = rule("posts", methods="POST")
    answer = ask(policy(posts), target)
    assert isinstance(answer, Deny) and answer.reason is Reason.METHOD_NOT_ALLOWED
    for harmless in (
        "/v1/x?method=delete",
        "/v1/x?_method=transfer",
        "/v1/x?method=track.search",
        "/v1/x?q=_method",
    ):
        assert ask(policy(posts), harmless) is posts


def test_an_upgrade_does_not_slip_past_a_rule_without_websockets() -> None:
    """A server may ignore the header and answer the GET."""
    reads = rule("reads", "/v1/merge", methods="GET", asking=ASKING)
    upgrade = ("upgrade", "websocket")
    assert names(ask(policy(reads, BROAD), "/v1/merge", upgrade, method="GET")) == "broad + reads"
    answer = ask(policy(reads), "/v1/merge", upgrade, method="GET")
    assert isinstance(answer, Deny) and answer.reason is Reason.PROTOCOL_REFUSED


def test_a_forwarded_path_brings_its_rule_along() -> None:
    """Allowed, with what its rule asks for."""
    answer = ask(BOTH, "/v1/x", ("x-forwarded-uri", "/v1/merge"))
    assert names(answer) == "broad + merge"
    assert names(ask(BOTH, "/v1/x", ("x-original-url", "/V1/merge/"))) == "broad + merge"


PUBLIC = rule("public", "/public/**", methods="GET PUT POST COPY MOVE")
SOURCES = policy(PUBLIC)


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("x-amz-copy-source", "/public/a", "/private/a"),
        ("x-amz-copy-source", "public%2Fa?versionId=1", "private%2Fa"),
        ("x-goog-copy-source", "public/a", "private/a"),
        ("x-oss-copy-source", "/public/a", "/private/a"),
        ("x-unknown-copy-source", "/public/a", "/private/a"),
        ("x-amz-copy-source", "/public/caf%C3%A9", "/public/../private/a"),
        ("x-ms-copy-source", "https://api.example.org/public/a?sas=1", "https://api.example.org/private/a"),
        ("x-ms-copy-source", "/public/a", "https://other.example.org/public/a"),
        ("x-file-copy-from", "/public/a", "/private"),
        ("destination", "https://api.example.org/public/b", "https://api.example.org/private/b"),
        ("destination", "/public/b", "/private/b"),
        ("destination", "/public/b", "https://api.example.org:8443/public/b"),
        ("dropbox-api-arg", '{"path":"/public/b","mode":"add"}', '{"path":"/Private/b"}'),
        ("dropbox-api-arg", '{"path":"/public/b"}', '{"entries":[{"from_path":"/private/b"}]}'),
        ("dropbox-api-arg", '{"path":"/public/\\u00fc b"}', '{"path":"id:abc"}'),
        ("dropbox-api-arg", "{}", "no JSON"),
        ("dropbox-api-path-root", '{".tag": "home"}', '{".tag": "root", "root": "123"}'),
        ("dropbox-api-path-root", '{".tag": "home"}', '{".tag": "namespace_id", "namespace_id": "123"}'),
        ("dropbox-api-path-root", '{".tag": "home"}', '{".tag": "home", ".tag": "root", "root": "1"}'),
        ("dropbox-api-path-root", '{".tag": "home"}', "no JSON"),
        ("x-cos-copy-source", "api.example.org/public/a?versionId=1", "api.example.org/private/a"),
        ("x-cos-copy-source", "api.example.org/public%2Fa", "other.example.org/public/a"),
        ("x-cos-copy-source", "api.example.org/public/caf%C3%A9", "/public/a"),
        ("dropbox-api-arg", "{}", '{"path":"/private/b","path":"/public/b"}'),
        ("dropbox-api-arg", "{}", '{"path":"/public/b","path":"/private/b"}'),
    ],
)
def test_what_is_read_or_written_besides_must_be_allowed_too(name: str, allowed: str, refused: str) -> None:
    """By a rule that looks at paths."""
    answer = ask(SOURCES, "/public/x", (name, allowed), method="PUT")
    assert answer is PUBLIC, answer
    answer = ask(SOURCES, "/public/x", (name, refused), method="PUT")
    assert isinstance(answer, Deny) and "private" not in answer.detail.lower(), answer
    assert answer.reason in (Reason.PATH_NOT_ALLOWED, Reason.HEADER_FORM_REFUSED, Reason.HOST_NOT_ALLOWED)


def test_a_source_is_read_with_get_and_a_rename_deletes_it() -> None:
    """So rules for those methods are asked."""
    writes = policy(rule("writes", methods="PUT"))
    answer = ask(writes, "/a/x", ("x-amz-copy-source", "/a/y"), method="PUT")
    assert isinstance(answer, Deny) and answer.reason is Reason.METHOD_NOT_ALLOWED
    assert answer.detail == "x-amz-copy-source asks for a GET that no rule allows"
    reads = policy(rule("reads and writes", methods="PUT GET"))
    assert isinstance(ask(reads, "/a/x", ("x-amz-copy-source", "/a/y"), method="PUT"), Rule)
    refused = ask(reads, "/a/x", ("x-ms-rename-source", "/a/y"), method="PUT")
    assert isinstance(refused, Deny) and refused.reason is Reason.METHOD_NOT_ALLOWED


def test_what_a_move_overwrites_is_what_a_put_overwrites() -> None:
    """The rule for PUT there has a say."""
    puts = rule("puts", "/dav/final/**", methods="PUT", asking=ASKING)
    dav = rule("dav", "/dav/**", methods="MOVE PUT")
    answer = ask(policy(puts, dav), "/dav/x", ("destination", "/dav/final/x"), method="MOVE")
    assert names(answer) == "dav + puts"


@pytest.mark.parametrize(
    ("host", "source", "asks"),
    [
        ("mine.s3.amazonaws.com", "/mine/key", None),
        ("mine.s3.amazonaws.com", "/other/key", Reason.HOST_NOT_ALLOWED),
        ("mine.s3-eu-west-1.amazonaws.com", "other/key", Reason.HOST_NOT_ALLOWED),
        ("mine.storage.googleapis.com", "other/key", Reason.HOST_NOT_ALLOWED),
        ("mine.nyc3.digitaloceanspaces.com", "other/key", Reason.HOST_NOT_ALLOWED),
        ("mine.nyc3.digitaloceanspaces.com", "mine/key", None),
        ("mine.0123abc.r2.cloudflarestorage.com", "other/key", Reason.HOST_NOT_ALLOWED),
        ("mine.bj.bcebos.com", "other/key", Reason.HOST_NOT_ALLOWED),
        ("nyc3.digitaloceanspaces.com", "other/key", None),
        ("0123abc.r2.cloudflarestorage.com", "other/key", None),
        ("s3.eu-west-1.amazonaws.com", "other/key", None),
        ("storage.googleapis.com", "other/key", None),
        ("minio.corp.example", "other/key", None),
    ],
)
def test_a_bucket_that_stands_in_the_host_is_judged_as_a_host(
    host: str, source: str, asks: Reason | None
) -> None:
    """A rule for one bucket's host, on all paths, says nothing of another bucket."""
    one = policy(replace(rule("bucket", methods="GET PUT"), hosts=(HostPattern(host),)))
    head = RequestHead("PUT", "/key", (("x-amz-copy-source", source),))
    answer = match(one, Destination("https", host, 443), head)
    assert (answer.reason if isinstance(answer, Deny) else None) is asks


def test_swift_names_objects_below_the_account() -> None:
    """`X-Copy-From: /container/object`; another account is another tenant's."""
    swift = policy(rule("mine", "/v1/AUTH_a/**", methods="GET PUT COPY"))
    put = partial(ask, swift, "/v1/AUTH_a/c/x", method="PUT")
    assert isinstance(put(("x-copy-from", "/c/y")), Rule)
    assert isinstance(put(("x-copy-from", "/c/y"), ("x-copy-from-account", "AUTH_a")), Rule)
    assert isinstance(put(("x-symlink-target", "c/y")), Rule)
    elsewhere = put(("x-symlink-target", "c/y"), ("x-symlink-target-account", "AUTH_b"))
    assert isinstance(elsewhere, Deny) and elsewhere.reason is Reason.HEADER_FORM_REFUSED
    refused = put(("x-copy-from", "/c/y"), ("x-copy-from-account", "AUTH_b"))
    assert isinstance(refused, Deny) and refused.reason is Reason.HEADER_FORM_REFUSED
    assert isinstance(ask(swift, "/v1/AUTH_a/c/x", ("destination", "c/y"), method="COPY"), Rule)


# --- headers that nobody listed ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        ("x-gateway-original-route", "/v1/merge"),
        ("x-upstream-path", "/v1/merge"),
        ("x-path", "/v1/merge"),
        ("x-originalurl", "/v1/merge"),
        ("xoriginalurl", "/v1/merge"),
        ("x-acmeforwardedpath", "/v1/merge"),
        ("x-script-name", "/v1/merge"),
        ("x-accel-mapping", "/v1/merge"),
        ("x-invoke-path", "/v1/merge"),
        ("x-matched-path", "/v1/merge"),
        ("x-waws-unencoded-url", "/v1/merge"),
        ("x-real-url", "https://api.example.org/v1/merge"),
        ("x-router-rewritten", "/v1/merge"),
        ("x-vendor-target-uri", "/V1/merge/"),
        ("x-backend-request", "//api.example.org/v1/merge"),
        ("x-doc-move-source", "/v1/merge"),
        ("x-thing-rename-from", "/v1/merge"),
    ],
)
def test_a_steering_header_that_is_not_in_the_table_counts_by_its_words_and_its_value(
    header: tuple[str, str],
) -> None:
    """A path or URL under a name that steers is a path that must be allowed."""
    assert names(ask(BOTH, "/v1/x", header)).endswith("merge")
    narrow = policy(rule("narrow", "/v1/x"))
    assert isinstance(ask(narrow, "/v1/x", header), Deny)


@pytest.mark.parametrize(
    "name", ["x-verb", "x-tunnel-method", "x-app-http-override", "x-method", "xhttpmethod"]
)
def test_an_override_that_is_not_in_the_table_counts_too(name: str) -> None:
    """Where the value is a method."""
    answer = ask(policy(rule("posts", methods="POST")), "/x", (name, "Delete"))
    assert isinstance(answer, Deny) and answer.reason is Reason.METHOD_NOT_ALLOWED


ORDINARY_CLIENTS: tuple[tuple[str, str], ...] = (
    ("x-stainless-lang", "python"),
    ("x-stainless-raw-response", "true"),
    ("x-stainless-helper-method", "stream"),
    ("x-request-id", "8f3c-/x"),
    ("http-referer", "https://myapp.example"),
    ("referer", "https://elsewhere.example/page"),
    ("origin", "https://elsewhere.example"),
    ("x-forwarded-for", "192.0.2.1"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-port", "443"),
    ("x-real-ip", "192.0.2.1"),
    ("x-requested-with", "XMLHttpRequest"),
    ("x-amz-target", "DynamoDB_20120810.Query"),
    ("x-amz-request-payer", "requester"),
    ("x-amz-meta-original-path", "/home/agent/secret plan"),
    ("x-goog-meta-url", "https://elsewhere.example/"),
    ("x-amz-website-redirect-location", "/elsewhere"),
    ("x-amz-copy-source-if-match", '"/etag"'),
    ("x-amz-copy-source-range", "bytes=0-9"),
    ("x-ms-copy-source-authorization", "Bearer x"),
    ("x-amz-security-token", "/base64+text=="),
    ("x-goog-request-params", "name=/projects/x"),
    ("access-control-request-method", "DELETE"),
    ("access-control-request-headers", "x-original-url"),
    ("upgrade-insecure-requests", "1"),
    ("sec-fetch-dest", "document"),
    ("sec-fetch-mode", "navigate"),
    ("hx-current-url", "https://api.example.org/page"),
    ("hx-target", "list"),
    ("next-url", "/en/docs"),
    ("mcp-method", "tools/call"),
    ("mcp-protocol-version", "2025-06-18"),
    ("git-protocol", "version=2"),
    ("npm-command", "install"),
    ("pacote-pkg-id", "registry:x@1"),
    ("soapaction", '"http://tempuri.org/IFoo/Bar"'),
    ("x-wap-profile", "http://wap.example/uaprof.xml"),
    ("link", "</x>; rel=preload"),
    ("x-file-path", "/home/x"),
    ("x-callback-url", "https://hooks.example/x"),
    ("x-client-host", "laptop.lan"),
    ("x-payment-method", "card"),
    ("x-slack-request-timestamp", "1531420618"),
    ("x-github-api-version", "2022-11-28"),
    ("x-goog-upload-protocol", "resumable"),
    ("x-goog-upload-command", "upload, finalize"),
    ("x-ms-client-request-id", "b0"),
    ("x-ms-source-if-match", "*"),
    ("grpc-timeout", "1S"),
    ("te", "trailers"),
    ("x-b3-traceid", "1"),
    ("baggage", "a=/b"),
    ("sentry-trace", "1-1-1"),
    ("dpop", "eyJ"),
    ("slug", "x.txt"),
    ("x-copy-count", "2"),
    ("depth", "1"),
    ("overwrite", "T"),
)


@pytest.mark.parametrize("header", ORDINARY_CLIENTS)
def test_headers_of_real_clients_steer_nothing(header: tuple[str, str]) -> None:
    """Each would be a false refusal under a rule that looks at paths."""
    narrow = rule("narrow", "/v1/x", methods="POST OPTIONS")
    assert ask(policy(narrow), "/v1/x", header) is narrow


def test_a_host_under_a_name_that_nobody_listed_is_the_requests_own() -> None:
    """Envoy picks an address by one of these."""
    for name in ("x-envoy-original-dst-host", "x-upstream-host", "x-backend-authority"):
        for value in ("evil.example", "10.0.0.1:80", "backend"):
            answer = ask(policy(BROAD), "/x", (name, value))
            assert isinstance(answer, Deny) and answer.reason is Reason.HEADER_FORM_REFUSED
        assert ask(policy(BROAD), "/x", (name, HOST)) is BROAD


def test_a_request_that_declares_too_much_is_refused() -> None:
    """Each of it is matched, shown and recorded."""
    many = tuple(("x-original-url", f"/{number}") for number in range(9))
    answer = ask(policy(BROAD), "/x", *many)
    assert isinstance(answer, Deny) and answer.reason is Reason.HEADER_FORM_REFUSED
    assert isinstance(ask(policy(BROAD), "/x", *many[:7]), Rule)


# --- an escaped slash ----------------------------------------------------------------------------------


def test_an_escaped_slash_is_declared_and_is_one_segment() -> None:
    """npm's scoped packages, GitLab's projects. A star and `/**` do not mean one."""
    npm = rule("npm", "/*", "/*%2F*", "/*/-/*", methods="GET")
    gitlab = rule("gitlab", "/api/v4/projects/*%2F*/issues/**", "/api/v4/projects/acme%2Fshop", methods="GET")
    both, get = policy(npm, gitlab), partial(ask, policy(npm, gitlab), method="GET")
    assert get("/@scope%2fname") is npm and get("/@scope%2Fname?x=%2F") is npm
    assert get("/api/v4/projects/a%2Fb/issues") is gitlab and get("/api/v4/projects/acme%2fshop") is gitlab
    for refused in (
        "/@scope%2F",
        "/%2Fname",
        "/a%2F%2Fb",
        "/a%2F..%2Fb",
        "/a%2F..",
        "/.%2Fb",
        "/a%2F.%2Fb",
        "/a%5Cb",
        "/a%252Fb",
        "/a%2F%2e%2e",
        "/a%2Fb%2Fc",
        "/x/-/a%2Fb",
        "/api/v4/projects/a%2Fb/issues/1%2F2",
        "/a%2F%20..",
        "/api/v4/projects/acme%2Fshop/x",
        "/a%2Fb;x",
    ):
        answer = get(refused)
        assert isinstance(answer, Deny) and answer.reason is Reason.PATH_FORM_REFUSED, refused
    assert isinstance(ask(policy(BROAD), "/a%2Fb"), Deny), "a rule without paths declares none"
    assert isinstance(match(both, HERE, RequestHead("DELETE", "/a%2Fb", ())), Deny)


def test_a_rule_that_fits_the_decoded_path_adds_its_terms() -> None:
    """Wherever it stands: the written path does not fit it, so nobody has exempted it."""
    npm = rule("npm", "/*%2F*", methods="GET")
    inside = rule("inside", "/internal/**", methods="GET", asking=ASKING)
    for rules in (policy(npm, inside), policy(inside, npm)):
        assert names(ask(rules, "/internal%2Fkey", method="GET")) == "npm + inside"
        assert names(ask(rules, "/Internal%2Fkey", method="GET")) == "npm + inside"
        assert ask(rules, "/@scope%2Fname", method="GET") is npm


# --- whose credentials ---------------------------------------------------------------------------------

KEY = Credential(
    "key",
    SecretRef("vault", "secret", "a", "b"),
    (HostPattern(HOST),),
    HeaderInjection("x-key"),
)
FREE = replace(KEY, name="free", handle_required=False)
FORM: Injector = BodyInjection("token", max_bytes=1000)
BODY = replace(KEY, name="body", inject=FORM)
HANDLES = {"key": "cch_eyJ1", "free": "cch_eyJ2"}


def make_session(credentials: frozenset[str]) -> Session:
    origin = Origin(OriginClass.SOCKET, "o")
    return Session("s", "t", "u", "p", origin, credentials, Isolation.HARDWARE, 1, 0.0, 9.0, 9.0, 9.0)


def verdict(
    rules: Policy,
    target: str,
    shown: str = "",
    *,
    method: str = "POST",
    headers: Headers = (),
    body: bool = False,
) -> Reason | frozenset[str] | NeedBody:
    """The refusal's reason, what is injected, or what the body must say."""
    session = make_session(frozenset(rules.credentials))
    claims = {text: Claims("s", name, 1, 0, 9, "j") for name, text in HANDLES.items()}
    context = DecisionContext(
        Now(1.0, 1.0), {session.origin: session}, {"p": rules}, claims.__getitem__, (), lambda _: False
    )
    if shown:
        headers = (*headers, ("x-key", HANDLES[shown]))
    head = RequestHead(method, target, headers, end_stream=not body)
    found = decide(Peer("l", (session.origin,)), HERE, head, context)
    if isinstance(found, Identified):
        return found.denial.reason
    assert not isinstance(found, Deny)
    if isinstance(found, NeedBody):
        return found
    return frozenset(found.credentials)


def test_what_a_rule_refuses_it_refuses_in_every_spelling() -> None:
    """A handle that is missing, or one that does not belong there."""
    guarded, free = rule("guarded", "/v1/secret", credentials=("key",)), rule("free", "/v1/secret")
    open_, with_key = rule("open"), rule("with key", credentials=("key",))
    rules = policy(guarded, open_, key=KEY)
    assert verdict(rules, "/v1/secret") is Reason.HANDLE_MISSING
    assert verdict(rules, "/v1/Secret") is Reason.HANDLE_MISSING
    assert verdict(rules, "/v1/other") == frozenset()
    rules = policy(free, with_key, key=KEY)
    assert verdict(rules, "/v1/secret", "key") is Reason.HANDLE_WRONG_HOST
    assert verdict(rules, "/v1/secret/", "key") is Reason.HANDLE_WRONG_HOST
    assert verdict(rules, "/v1/other", "key") == frozenset({"key"})


def test_a_secret_that_needs_no_handle_is_put_in_only_where_every_rule_gives_it() -> None:
    """Otherwise the request leaves as the stricter rule lets it: without."""
    carved, rest = rule("carved", "/echo"), rule("rest", credentials=("free",))
    rules = policy(carved, rest, free=FREE)
    assert verdict(rules, "/x") == frozenset({"free"})
    assert verdict(rules, "/echo") == verdict(rules, "/Echo/") == frozenset()
    both = policy(replace(carved, credentials=("free",)), rest, free=FREE)
    assert verdict(both, "/Echo") == frozenset({"free"})


def test_a_credential_in_the_body_is_needed_by_every_rule_or_refused() -> None:
    """The body is looked at for what all of them give."""
    narrow, wide = rule("narrow", "/f", credentials=("body",)), rule("wide", credentials=("body",))
    form = (("content-type", "application/json"),)
    needed = verdict(policy(narrow, wide, body=BODY), "/F", body=True, headers=form)
    assert isinstance(needed, NeedBody) and [each.name for each in needed.credentials] == ["body"]
    assert needed.rule.names == "wide + narrow"
    free = policy(replace(narrow, credentials=()), wide, body=BODY)
    assert verdict(free, "/F", body=True, headers=form) is Reason.HANDLE_MISSING
    guarded = policy(narrow, replace(wide, credentials=()), body=BODY)
    assert verdict(guarded, "/F", body=True, headers=form) is Reason.HANDLE_MISSING


def test_a_credential_is_for_everything_that_the_request_declares() -> None:
    """Its own methods and paths hold for overrides, forwarded paths and sources."""
    key = replace(KEY, methods=frozenset({"POST"}), paths=(path_pattern("/v1/**"),))
    rules = policy(rule("all", methods="GET POST", credentials=("key",)), key=key)
    assert verdict(rules, "/v1/x", "key") == frozenset({"key"})
    for header in (
        ("x-http-method-override", "GET"),
        ("x-original-url", "/v2/x"),
        ("x-amz-copy-source", "/v1/x"),
    ):
        assert verdict(rules, "/v1/x", "key", headers=(header,)) is Reason.HANDLE_WRONG_HOST


# --- drawn at random -----------------------------------------------------------------------------------

SEGMENTS = ("a", "A", "b", "*", "")
patterns = st.builds(
    PathPattern, st.lists(st.sampled_from(SEGMENTS[:4]), max_size=2).map(tuple), st.booleans()
).filter(lambda pattern: pattern.segments or pattern.prefix)
drawn_rules = st.builds(
    Rule,
    name=st.just(""),
    hosts=st.just((HostPattern(HOST),)),
    methods=st.sampled_from([frozenset({"GET"}), frozenset({"POST"}), frozenset({"GET", "POST", "HEAD"})]),
    paths=st.lists(patterns, max_size=2).map(tuple),
    websocket=st.booleans(),
    asking=st.sampled_from([None, ASKING]),
)
drawn_policies = st.lists(drawn_rules, min_size=1, max_size=5).map(
    lambda rules: policy(*(replace(each, name=f"r{at}") for at, each in enumerate(rules)))
)
drawn_paths = st.lists(st.sampled_from(("a", "A", "b", "B", "a.", "b.json")), max_size=3).flatmap(
    lambda parts: st.sampled_from(("/" + "/".join(parts), "/" + "/".join((*parts, "")) if parts else "/"))
)


def plainly(rules: Policy, method: str, path: str, upgrade: bool = False) -> list[Rule]:
    """Every rule that allows one reading, in order, by trying all of them: what an index must find."""
    return [
        each
        for each in rules.rules
        if method in each.methods
        and (each.websocket or not upgrade)
        and (not each.paths or any(pattern.matches(path) for pattern in each.paths))
    ]


def lenient(rules: Policy, method: str, path: str) -> list[Rule]:
    """Every rule that a server's lenient reading of the path could be meant for."""
    return [
        each
        for each in rules.rules
        if method in each.methods
        and (
            not each.paths
            or any(
                pattern.leniently.matches_segments(way) for pattern in each.paths for way in spellings(path)
            )
        )
    ]


@settings(max_examples=300)
@given(drawn_policies, drawn_paths, st.sampled_from(["GET", "POST"]))
def test_a_spelling_changes_nothing_but_terms(rules: Policy, path: str, method: str) -> None:
    """Who decides is who is written first, as before; and each rule of another spelling that does not fit the
    written one has its terms in the answer, no more and no less."""
    written, answer = plainly(rules, method, canonical_path(path)), ask(rules, path, method=method)
    if not written:
        assert isinstance(answer, Deny)
        return
    assert isinstance(answer, Rule) and answer.name == written[0].name
    expected = {each.name for each in lenient(rules, method, path)} - {each.name for each in written}
    assert {each.name for each in answer.further} == expected
    asks = any(each.asking for each in rules.rules if each.name in expected | {answer.name})
    assert (answer.asking is not None) == asks


@settings(max_examples=300)
@given(drawn_policies, drawn_paths, st.sampled_from(["GET", "POST", "PATCH"]), st.booleans(), drawn_paths)
def test_what_is_declared_is_allowed_as_itself_or_refused(
    rules: Policy, path: str, override: str, upgrade: bool, forwarded: str
) -> None:
    """And asks wherever it would ask by itself: nothing is gained by putting it into a header."""
    headers = (("x-http-method-override", override), ("x-forwarded-uri", forwarded))
    asked = [("GET", path), (override, path), ("GET", forwarded), (override, forwarded)]
    together = ask(rules, path, *headers, *([("upgrade", "websocket")] if upgrade else []), method="GET")
    alone = [ask(rules, each, method=method) for method, each in asked]
    if upgrade:
        alone.append(ask(rules, path, ("upgrade", "websocket"), method="GET"))
    assert isinstance(together, Deny) == any(isinstance(each, Deny) for each in alone)
    if isinstance(together, Rule):
        terms = {one.name for each in alone if isinstance(each, Rule) for one in (each, *each.further)}
        assert {together.name, *(each.name for each in together.further)} == terms
        assert (together.asking is not None) == any(isinstance(each, Rule) and each.asking for each in alone)


# --- many rules ----------------------------------------------------------------------------------------


def many(count: int) -> Policy:
    """One host with a rule for each of `count` paths, and a broad one at the end."""
    listed = [rule(f"r{at}", f"/v1/things/t{at}/**", f"/v1/t{at}/*", limits=(LIMIT,)) for at in range(count)]
    return policy(*listed, rule("rest", "/v1/**", methods="GET"))


def cost(rules: Policy, target: str, method: str) -> float:
    best = float("inf")
    for _ in range(7):
        begun = time.process_time()
        for _ in range(2000):
            ask(rules, target, method=method)
        best = min(best, time.process_time() - begun)
    return best


@pytest.mark.parametrize(
    ("target", "method"),
    [("/v1/things/t7/x", "POST"), ("/v1/other", "GET"), ("/v2", "GET"), ("/v1/T7/x/", "GET")],
)
def test_ten_thousand_rules_decide_like_ten(target: str, method: str) -> None:
    """The allowed, the refused and the spelt."""
    few, lots = many(10), many(10_000)
    ratios = sorted(cost(lots, target, method) / cost(few, target, method) for _ in range(3))
    assert ratios[0] < 1.2, ratios
