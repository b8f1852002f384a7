"""Response plans: what is refused, what ends here, what is masked, and how the body goes on."""

import base64
import encodings.aliases

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Headers, RequestHead, ResponseHead
from coatcheck.decision.ranges import NO_PART, Part
from coatcheck.decision.response import (
    Framing,
    ResponsePlan,
    plan_response,
    plan_trailers,
    readable_charset,
)
from coatcheck.decision.response_headers import MAX_HEADER_BYTES, MAX_HEADERS
from coatcheck.decision.scrub import Patterns, Run

SECRET = "sk-proj-0123456789abcdefABCDEF"
PATTERNS = Patterns.of([SECRET])
NOTHING = Patterns(())
UPGRADE: Headers = (
    ("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA=="),
    ("connection", "keep-alive, Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
)


def plan(
    *headers: tuple[str, str],
    status: int = 200,
    method: str = "GET",
    asked: Headers = (),
    authenticated: bool = True,
    patterns: Patterns | None = PATTERNS,
    version: str = "HTTP/1.1",
    keep_set_cookie: bool = False,
    websocket: bool = False,
) -> ResponsePlan | Deny:
    return plan_response(
        RequestHead(method, "/", asked),
        ResponseHead(status, headers, version),
        authenticated=authenticated,
        patterns=patterns,
        keep_set_cookie=keep_set_cookie,
        websocket=websocket,
    )


def accepted(answer: ResponsePlan | Deny) -> ResponsePlan:
    assert isinstance(answer, ResponsePlan), answer
    return answer


def refused(answer: ResponsePlan | Deny) -> str:
    assert isinstance(answer, Deny), answer
    assert answer.reason is Reason.UPSTREAM_RESPONSE_REFUSED
    assert SECRET not in answer.detail
    return answer.detail


@pytest.mark.parametrize("authenticated", [True, False])
@pytest.mark.parametrize(
    "headers",
    [
        (("content-length", "5"), ("transfer-encoding", "chunked")),
        (("content-length", "5"), ("content-length", "6")),
        (("content-length", "5, 6"),),
        (("content-length", "-5"),),
        (("content-length", "+5"),),
        (("content-length", "5_0"),),
        (("content-length", "٥"),),
        (("content-length", "\xb2"),),
        (("content-length", ""),),
        (("content-length", "0x5"),),
        (("content-length", "9" * 19),),
        (("Content-Length", "5"), ("content-length", "6")),
        (("transfer-encoding", "gzip, chunked"),),
        (("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")),
        (("transfer-encoding", "xchunked"),),
        (("transfer-encoding", "identity"),),
        (("Transfer-Encoding", "identity"),),
        (("connection", "close, content-length"), ("content-length", "5")),
        (("connection", "Content-Encoding"), ("content-encoding", "gzip")),
        (("x-a", "b\r\nset-cookie: a=b"),),
        (("x-a", "b\nc"),),
        (("x-a", "b\0"),),
        (("x-a", "✓"),),
        (("x a", "b"),),
        (("", "b"),),
        (("x-a:", "b"),),
        (("x-a\n", "b"),),
        tuple((f"x-{n}", "v") for n in range(MAX_HEADERS + 1)),
        (("x-a", "v" * MAX_HEADER_BYTES),),
    ],
    ids=lambda headers: repr(headers)[:60],
)
def test_a_head_that_two_readers_could_read_differently_is_refused(
    headers: Headers, authenticated: bool
) -> None:
    """Framing that conflicts, values that split, names that are none: for every response (I7)."""
    refused(plan(*headers, authenticated=authenticated))


def test_transfer_encoding_where_it_may_not_stand_is_refused() -> None:
    """RFC 9112 6.1 and RFC 9113 8.2.2."""
    chunked = ("transfer-encoding", "chunked")
    for version in ("HTTP/1.0", "HTTP/2.0"):
        refused(plan(chunked, version=version))
    refused(plan(chunked, status=204))
    refused(plan(("content-length", "3"), status=204))


@pytest.mark.parametrize("status", [0, 99, 100, 102, 103, 1000])
def test_interim_and_impossible_statuses_are_refused(status: int) -> None:
    """An interim answer that a plane takes for the final one would put the connection out of step."""
    refused(plan(status=status))


@pytest.mark.parametrize("status", [206, 226])
def test_a_part_of_a_body_is_refused_where_a_secret_could_show(status: int) -> None:
    """A range could begin in the middle of an echo."""
    for authenticated in (True, False):
        refused(plan(("content-range", "bytes 5-9/10"), status=status, authenticated=authenticated))
    for unsearched in (None, NOTHING):
        accepted(plan(("content-range", "bytes 5-9/10"), status=status, patterns=unsearched))


@pytest.mark.parametrize("method", ["TRACE", "TRACK", "trace"])
def test_trace_answers_are_refused_where_a_secret_went(method: str) -> None:
    """They echo the request with its credential (srt's issue of TRACE and TRACK)."""
    refused(plan(method=method))


def test_a_websocket_upgrade_needs_rule_request_and_answer() -> None:
    """101 only if the rule allows it, the request asked by RFC 6455, and the answer is a WebSocket."""
    answer = (
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-accept", "ICX+Yqv66kxgM0FcWaLWlFLwTAI="),
    )
    done = accepted(plan(*answer, status=101, asked=UPGRADE, websocket=True))
    assert done.headers == (
        ("upgrade", "websocket"),
        ("sec-websocket-accept", "ICX+Yqv66kxgM0FcWaLWlFLwTAI="),
        ("connection", "upgrade"),
    )
    assert (done.framing, done.scrub_body) == (Framing.NONE, False)
    refused(plan(*answer, status=101, asked=UPGRADE, websocket=False))
    refused(plan(*answer, status=101, asked=UPGRADE[:2], websocket=True))
    refused(plan(*answer, status=101, asked=(*UPGRADE[:1], ("upgrade", "h2c"), UPGRADE[2]), websocket=True))
    refused(plan(("connection", "Upgrade"), ("upgrade", "h2c"), status=101, asked=UPGRADE, websocket=True))
    for extension, fine in (("permessage-deflate; client_no_context_takeover", True), ("x-zip", False)):
        done_or_not = plan(
            *answer, ("sec-websocket-extensions", extension), status=101, asked=UPGRADE, websocket=True
        )
        assert isinstance(done_or_not, ResponsePlan) is fine


def test_set_cookie_is_dropped_unless_policy_keeps_it() -> None:
    """A cookie that an upstream gives for the real credential is one (I1)."""
    cookie = ("set-cookie", "sid=1")
    assert cookie not in accepted(plan(cookie)).headers
    assert cookie in accepted(plan(cookie, keep_set_cookie=True)).headers
    assert cookie in accepted(plan(cookie, authenticated=False)).headers
    assert accepted(plan(("set-cookie2", "sid=1"))).headers == ()
    answer = plan_response(
        RequestHead("GET", "/", ()), ResponseHead(200, (cookie,)), authenticated=True, patterns=PATTERNS
    )
    assert accepted(answer).headers == ()


@pytest.mark.parametrize(
    "header",
    [
        ("alt-svc", 'h3=":443"'),
        ("proxy-authenticate", "Basic"),
        ("proxy-connection", "keep-alive"),
        ("keep-alive", "timeout=5"),
        ("te", "trailers"),
        ("trailer", "x-checksum"),
        ("upgrade", "h2c"),
        ("x-named", "by Connection"),
        ("coatcheck-reason", "forged"),
    ],
)
def test_headers_that_are_for_us_or_lead_around_us_end_here(header: tuple[str, str]) -> None:
    """Hop-by-hop fields, Alt-Svc, and what pretends to be ours."""
    done = accepted(
        plan(header, ("connection", "x-named, close"), ("x-kept", "1"), authenticated=False, patterns=None)
    )
    assert done.headers == (("x-kept", "1"), ("connection", "close"))


@pytest.mark.parametrize(
    ("name", "value", "clean"),
    [
        ("location", f"https://a.example/?key={SECRET}&x=1", f"https://a.example/?key={'*' * 30}&x=1"),
        ("refresh", f"0; url=/{SECRET}", f"0; url=/{'*' * 30}"),
        ("content-location", f"/{SECRET}", "/" + "*" * 30),
        ("link", f"</{SECRET}>; rel=next", f"</{'*' * 30}>; rel=next"),
        ("www-authenticate", f'Bearer error="{SECRET}"', f'Bearer error="{"*" * 30}"'),
        ("sec-websocket-protocol", SECRET, "*" * 30),
        ("etag", f'"{SECRET}"', f'"{"*" * 30}"'),
    ],
)
def test_secrets_are_masked_in_every_header(name: str, value: str, clean: str) -> None:
    """Redirects, links, challenges, whatever: no header is special."""
    done = accepted(plan((name, value), ("content-length", "0")))
    assert done.headers == ((name, clean), ("content-length", "0"))
    assert done.hits == 1


def test_a_header_whose_name_echoes_a_secret_is_dropped() -> None:
    """Names come lower-case; that hides no echo."""
    done = accepted(plan(("x-echo-" + SECRET.lower(), "1"), ("X-" + SECRET, "2"), ("content-length", "0")))
    assert (done.headers, done.hits) == ((("content-length", "0"),), 2)


def test_basic_is_masked_in_a_header() -> None:
    """An echoed Authorization header holds the secret in base64."""
    echo = "Basic " + base64.b64encode(b"user:" + SECRET.encode()).decode()
    done = accepted(plan(("x-echo", echo), ("content-length", "0")))
    assert done.hits == 1 and done.headers[0][1].count("*") >= 38


def test_an_identity_body_keeps_its_framing_and_loses_its_digests() -> None:
    """Masks have the secret's length; statements about exact bytes would become false."""
    done = accepted(
        plan(
            ("content-length", "100"),
            ("etag", '"v1"'),
            ("last-modified", "x"),
            ("content-md5", "x"),
            ("digest", "x"),
            ("content-digest", "x"),
            ("repr-digest", "x"),
            ("accept-ranges", "bytes"),
        )
    )
    kept = (("content-length", "100"), ("etag", '"v1"'), ("last-modified", "x"), ("accept-ranges", "bytes"))
    assert done.headers == kept, "ranges are cut here, so they are to be had"
    assert (done.framing, done.scrub_body, done.codings) == (Framing.KEEP, True, ())


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "deflate", "x-gzip", "gzip, br"])
def test_a_coded_body_is_decoded_and_sent_chunked(coding: str) -> None:
    """Content-Encoding and Content-Length go, a strong ETag becomes weak."""
    done = accepted(plan(("content-encoding", coding), ("content-length", "100"), ("etag", '"v1"')))
    assert done.headers == (("etag", 'W/"v1"'),)
    assert (done.framing, done.scrub_body) == (Framing.CHUNKED, True)
    assert done.codings == tuple(coding.removeprefix("x-").split(", "))


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_no_length_of_a_coded_body_is_told(method: str) -> None:
    """It says how well a page compresses in which a secret stands beside a guess (BREACH)."""
    for status in (200, 304):
        headers = (("content-encoding", "gzip"), ("content-length", "100"), ("accept-ranges", "bytes"))
        assert accepted(plan(*headers, method=method, status=status)).headers == ()
        assert accepted(plan(*headers, method=method, status=status, patterns=None)).headers == headers


def test_what_is_no_strong_etag_stays_as_it_is() -> None:
    """Only that claims the coded bytes."""
    headers = (("etag", 'W/"v1"'), ("x-quoted", '"v1"'))
    assert accepted(plan(("content-encoding", "gzip"), *headers)).headers == headers


def test_a_range_is_cut_out_of_the_whole() -> None:
    """206 with the part's length; digests of the whole go, so that no SDK compares them with a part."""
    headers = (("content-length", "100"), ("etag", '"v1"'), ("x-amz-checksum-crc32", "x"), ("x-kept", "1"))
    done = accepted(plan(*headers, asked=(("range", "bytes=90-"),)))
    assert (done.status, done.part, done.framing) == (206, Part(90, 99), Framing.KEEP)
    kept = (("etag", '"v1"'), ("x-kept", "1"))
    assert done.headers == (*kept, ("content-range", "bytes 90-99/100"), ("content-length", "10"))


def test_a_range_that_is_not_there_has_no_body() -> None:
    """416 says how long the whole is (RFC 9110 15.5.17)."""
    headers = (("content-length", "100"), ("content-type", "text/plain"), ("etag", '"v1"'))
    done = accepted(plan(*headers, asked=(("range", "bytes=100-"),)))
    assert (done.status, done.part, done.framing) == (416, NO_PART, Framing.NONE)
    assert done.headers == (("etag", '"v1"'), ("content-range", "bytes */100"), ("content-length", "0"))


@pytest.mark.parametrize(
    ("headers", "patterns"),
    [((), PATTERNS), ((("content-length", "9"), ("content-encoding", "gzip")), PATTERNS),
     ((("content-length", "9"),), None)],
)  # fmt: skip
def test_what_has_no_known_length_or_is_not_searched_is_not_cut(
    headers: Headers, patterns: Patterns | None
) -> None:
    """A server may ignore a range; a rule that is not searched had it forwarded."""
    done = accepted(plan(*headers, asked=(("range", "bytes=1-"),), patterns=patterns))
    assert done.status is None and done.part is None


def test_what_was_masked_in_the_head_is_counted_whatever_follows_it() -> None:
    """With and without a body."""
    for more in ((), (("content-length", "5"),), (("content-encoding", "gzip"),), (("content-length", "0"),)):
        assert accepted(plan(("x-echo", SECRET), *more)).hits == 1
    assert accepted(plan(("x-echo", SECRET), status=599)).hits == 1


def test_what_hides_a_body_from_the_scrubber_is_refused() -> None:
    """Codings that cannot be undone, parts of coded bodies, messages compressed one by one."""
    for headers in (
        (("content-encoding", "compress"),),
        (("content-encoding", "gzip"), ("content-encoding", "dcz")),
        (("content-encoding", "gzip, gzip, gzip"),),
        (("content-type", "application/grpc+proto"), ("grpc-encoding", "snappy")),
        (("content-type", "application/connect+proto"), ("connect-content-encoding", "lz4")),
        (("content-type", "application/grpc-web-text"), ("grpc-encoding", "gzip")),
    ):
        refused(plan(*headers))
        refused(plan(*headers, authenticated=False))
        accepted(plan(*headers, patterns=None))
        accepted(plan(*headers, ("content-length", "0")))
        accepted(plan(*headers, method="HEAD"))
    refused(plan(("content-encoding", "gzip"), status=206, authenticated=False))
    accepted(plan(("content-encoding", "gzip"), authenticated=False))
    for missing in (None, NOTHING):
        accepted(plan(("content-encoding", "compress"), patterns=missing))
    for allowed in ((), (("grpc-encoding", "Identity"),)):
        accepted(plan(("content-type", " Application/gRPC+proto\t"), *allowed))
    accepted(plan(("content-type", "text/plain"), ("grpc-encoding", "gzip")))
    accepted(plan(("grpc-encoding", "gzip")))


@pytest.mark.parametrize(
    "charset", ["utf-16", '"UTF-16LE"', "utf-7", "ibm037", "utf-32", "iso-2022-kr", "x", "utf-16=utf-8"]
)
def test_a_charset_in_which_no_secret_would_be_found_is_refused(charset: str) -> None:
    """A sandbox that asks for it (`Accept: text/plain;charset=utf-16`) gets it from honest servers."""
    for value in (f"text/plain; x=y; Charset = {charset}; x=y", f"text/plain;charset={charset}"):
        content_type = (("content-type", value),)
        for authenticated in (True, False):
            refused(plan(*content_type, authenticated=authenticated))
        accepted(plan(*content_type, authenticated=False, patterns=None))


_OTHER_SPELLINGS = ("hz", "idna", "iso2022", "punycode", "raw_unicode_escape", "unicode_escape", "utf_7")
"""Codecs of Python's that leave ASCII as it is, and can spell it in another way, too."""


def _keeps_ascii(codec: str) -> bool:
    try:
        text = bytes(range(128)).decode(codec)
        return text == bytes(range(128)).decode("ascii") and not codec.startswith(_OTHER_SPELLINGS)
    except (UnicodeError, LookupError):
        return False


@pytest.mark.parametrize("codec", sorted(set(encodings.aliases.aliases.values())))
def test_a_charset_passes_if_ascii_is_ascii_in_it(codec: str) -> None:
    """Each codec of Python's is a witness: one that is let through keeps ASCII, under all of its names."""
    names = [name for name, of in encodings.aliases.aliases.items() if of == codec] + [codec]
    let_through = [
        name
        for name in names
        if readable_charset(ResponseHead(200, (("content-type", f"text/plain;charset={name}"),)))
    ]
    assert not let_through or _keeps_ascii(codec)


@pytest.mark.parametrize(
    "charset",
    """utf-8 "UTF-8" utf_8 us-ascii ANSI_X3.4-1968 ISO-8859-1 ISO_8859-1 ISO_8859-1:1987 iso8859-15 latin1 l1
    windows-1252 cp1251 x-cp1252 cp866 IBM850 Shift_JIS Shift-JIS x-sjis windows-31j MS932 EUC-JP euc_kr
    GB2312 GBK gb18030 Big5 big5-hkscs KOI8-R koi8_u macintosh x-mac-cyrillic TIS-620 binary '' """.split(),  # noqa: SIM905
)
def test_charsets_that_hold_ascii_pass(charset: str) -> None:
    """What is in use."""
    content_type = (("content-type", f"text/plain; x=y;charset={charset}"),)
    planned = plan_response(
        RequestHead("GET", "/", ()), ResponseHead(200, content_type), authenticated=True, patterns=PATTERNS
    )
    assert isinstance(planned, ResponsePlan)


def test_an_unknown_length_goes_out_chunked() -> None:
    """So that an abort is not taken for the end (I3), also after an upstream that ends by closing."""
    for headers in ((("transfer-encoding", "chunked"),), ()):
        for patterns in (PATTERNS, None):
            done = accepted(plan(*headers, patterns=patterns))
            assert (done.headers, done.framing, done.hits) == ((), Framing.CHUNKED, 0)
            assert done.scrub_body is (patterns is not None)


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 304)])
def test_a_response_without_body_keeps_what_it_says_about_one(method: str, status: int) -> None:
    """HEAD and 304 describe a body that does not come; nothing is scrubbed, and no byte may follow."""
    headers = (("content-length", "100"), ("content-type", "text/html"), ("etag", '"v1"'))
    done = accepted(plan(*headers, method=method, status=status))
    assert done == ResponsePlan(headers, Framing.NONE, False)


def test_no_content_has_no_framing() -> None:
    """RFC 9110 8.6: no Content-Length on a 204."""
    for headers in ((("content-length", "0"),), ()):
        assert accepted(plan(*headers, status=204)) == ResponsePlan((), Framing.NONE, False)


def test_a_length_given_twice_alike_is_given_once() -> None:
    """RFC 9110 8.6 allows to combine equal values."""
    done = accepted(plan(("content-length", "5"), ("content-length", "5"), patterns=None))
    assert done.headers == (("content-length", "5"),)
    assert accepted(plan(("content-length", "5, 5"), patterns=None)).headers == (("content-length", "5"),)


@given(
    status=st.integers(-1, 1000),
    headers=st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "content-length",
                    "transfer-encoding",
                    "content-encoding",
                    "connection",
                    "etag",
                    "x-a",
                    "\x00é",
                ]
            ),
            st.one_of(
                st.text(max_size=8), st.sampled_from(["5", "0", "chunked", "gzip", "close", '"e"', SECRET])
            ),
        ),
        max_size=6,
    ),
    method=st.sampled_from(["GET", "HEAD", "POST"]),
    authenticated=st.booleans(),
    websocket=st.booleans(),
)
def test_every_head_gives_a_safe_plan_or_a_refusal(
    status: int, headers: list[tuple[str, str]], method: str, authenticated: bool, websocket: bool
) -> None:
    """Nothing raises; no plan holds a secret, two framings, or a body that bypasses the scrubber."""
    done = plan(*headers, status=status, method=method, authenticated=authenticated, websocket=websocket)
    if isinstance(done, Deny):
        return
    names = [name for name, _ in done.headers]
    assert SECRET not in repr(done)
    assert "transfer-encoding" not in names and names.count("content-length") <= 1
    assert done.scrub_body or done.framing is Framing.NONE
    assert done.framing is not Framing.CHUNKED or "content-length" not in names
    assert done.framing is not Framing.KEEP or "content-length" in names


def test_trailers_are_scrubbed_too() -> None:
    """gRPC's status message can echo a credential; framing and cookies have no place in trailers."""
    answer = plan_trailers(
        (("grpc-status", "16"), ("grpc-message", f"bad key {SECRET}"), ("set-cookie", "a=b")), PATTERNS
    )
    assert answer == ((("grpc-status", "16"), ("grpc-message", "bad key " + "*" * 30)), (Run("", 22, True),))
    assert plan_trailers((("grpc-status", "0"),), None) == ((("grpc-status", "0"),), ())
    assert isinstance(plan_trailers((("x", "a\nb"),), None), Deny)
