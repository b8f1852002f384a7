"""Substitution: a secret comes to stand exactly where its handle stood, and nowhere else."""

import base64
import json
from dataclasses import replace
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.message import Edits, Headers, RequestHead
from coatcheck.decision.policy import (
    BasicInjection,
    BodyInjection,
    Credential,
    HeaderInjection,
    HostPattern,
    InjectionKind,
    PathInjection,
    QueryInjection,
    SecretRef,
    Shape,
    SigV4Injection,
)
from coatcheck.decision.substitute import body_limit, check_secret, substitute
from coatcheck.decision.verdict import Deny, Injection, Reason

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


class TestHeader:
    BEARER = HeaderInjection("Authorization", "Bearer {secret}")

    def test_the_secret_takes_the_handles_place_in_the_template(self) -> None:
        """`Bearer <handle>` leaves as `Bearer <secret>`; nothing else is edited."""
        head = request(headers=(("authorization", f"Bearer {HANDLE}"), ("accept", "*/*")))
        assert edits(run(self.BEARER, head)) == Edits((("authorization", f"Bearer {SECRET}"),))

    def test_the_scheme_is_compared_without_case(self) -> None:
        """A client's `bearer` is the template's `Bearer` (RFC 9110, 11.1)."""
        result = edits(run(self.BEARER, request(headers=(("authorization", f"bEARER {HANDLE}"),))))
        assert result.set_headers == (("authorization", f"Bearer {SECRET}"),)

    @pytest.mark.parametrize(
        "value",
        [
            HANDLE,
            f"Bearer  {HANDLE}",
            f"Bearer {HANDLE} ",
            f"token {HANDLE}",
            f"Bearer {HANDLE}x",
            f"Bearer {OTHER}",
            "",
        ],
    )
    def test_a_handle_beside_its_place_is_misplaced(self, value: str) -> None:
        """Anything but the template with the handle in it is refused."""
        assert (
            refused(run(self.BEARER, request(headers=(("authorization", value),)))) is Reason.HANDLE_MISPLACED
        )

    def test_a_missing_header_is_a_missing_handle(self) -> None:
        """The plan said that a handle stands there; without it nothing is put in."""
        assert refused(run(self.BEARER, request())) is Reason.HANDLE_MISSING

    def test_two_headers_of_the_name_are_refused(self) -> None:
        """Upstreams differ in which of two they take (I7)."""
        twice = (("authorization", f"Bearer {HANDLE}"), ("authorization", "Bearer mine"))
        assert refused(run(self.BEARER, request(headers=twice))) is Reason.HEADER_FORM_REFUSED
        assert refused(run(self.BEARER, request(headers=twice), handle=None)) is Reason.HEADER_FORM_REFUSED

    @pytest.mark.parametrize("headers", [(), (("authorization", "Bearer unused"),)])
    def test_without_a_handle_the_header_is_set_whatever_it_was(self, headers: Headers) -> None:
        """`handle_required: false` replaces a placeholder of the client's own."""
        result = edits(run(self.BEARER, request(headers=headers), handle=None))
        assert result.set_headers == (("authorization", f"Bearer {SECRET}"),)

    @pytest.mark.parametrize("template", ["Bearer", "{secret}{secret}"])
    def test_a_template_without_one_place_is_refused(self, template: str) -> None:
        """A template that slipped through the policy's check cannot send a request without its secret."""
        kind = HeaderInjection("x-key", template)
        assert refused(run(kind, request(), handle=None)) is Reason.PLANE_CANNOT


class TestBasic:
    def test_the_password_is_decoded_checked_and_encoded_again(self) -> None:
        """The client's username stays, the handle as password becomes the secret."""
        result = edits(run(BasicInjection(), request(headers=(("authorization", basic("git", HANDLE)),))))
        assert result.set_headers == (("authorization", basic("git", SECRET)),)

    def test_a_fixed_username_replaces_the_clients(self) -> None:
        """The policy's username wins over the client's."""
        head = request(headers=(("authorization", basic("whoever", HANDLE)),))
        result = edits(run(BasicInjection("x-access-token"), head))
        assert result.set_headers == (("authorization", basic("x-access-token", SECRET)),)

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            (basic("git", HANDLE + "x"), Reason.HANDLE_MISPLACED),
            (basic(HANDLE, "x-oauth-basic"), Reason.HANDLE_MISPLACED),
            (basic("git", HANDLE)[:-1] + "!", Reason.HANDLE_MALFORMED),
            (basic("git", HANDLE).replace("Basic ", "Basic  "), Reason.HANDLE_MALFORMED),
            (basic("git", HANDLE).rstrip("="), Reason.HANDLE_MALFORMED),
            ("Basic " + base64.b64encode(HANDLE.encode()).decode(), Reason.HANDLE_MALFORMED),
            ("Basic " + base64.b64encode(f"git\n:{HANDLE}".encode()).decode(), Reason.HANDLE_MALFORMED),
            ("Basic " + base64.b64encode(b"\xff:" + HANDLE.encode()).decode(), Reason.HANDLE_MALFORMED),
            (f"Bearer {HANDLE}", Reason.HANDLE_MALFORMED),
        ],
    )
    def test_anything_but_strict_basic_with_the_handle_is_refused(self, value: str, reason: Reason) -> None:
        """Base64 that decoders read differently, and passwords that only hold the handle, do not pass."""
        assert refused(run(BasicInjection(), request(headers=(("authorization", value),)))) is reason

    def test_base64_with_stray_bits_is_refused(self) -> None:
        """`QQ==` and `QR==` decode alike; one text has one encoding here."""
        value = basic("git", HANDLE)
        assert value.endswith("=")
        stem, pads = value.rstrip("="), "=" * (len(value) - len(value.rstrip("=")))
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
        stray = stem[:-1] + alphabet[alphabet.index(stem[-1]) + 1] + pads
        assert base64.b64decode(stray[6:]) == base64.b64decode(value[6:])
        head = request(headers=(("authorization", stray),))
        assert refused(run(BasicInjection(), head)) is Reason.HANDLE_MALFORMED

    def test_no_credentials_are_answered_with_a_challenge(self) -> None:
        """git sends its password only after a 401 with WWW-Authenticate."""
        result = run(BasicInjection(realm="git"), request())
        assert refused(result) is Reason.HANDLE_MISSING
        assert isinstance(result, Deny) and result.challenge == 'Basic realm="git", charset="UTF-8"'

    def test_without_a_handle_the_fixed_username_is_enough(self) -> None:
        """`handle_required: false` with a username needs nothing from the client."""
        result = edits(run(BasicInjection("me"), request(), handle=None))
        assert result.set_headers == (("authorization", basic("me", SECRET)),)


class TestQuery:
    KEY = QueryInjection("key")

    def test_only_the_one_value_changes(self) -> None:
        """Order, odd escapes and empty pairs of the others keep their bytes; the secret is encoded."""
        head = request(f"/v1/x%20y?a=%2f+b&&key={HANDLE}&a=2&%zz=é")
        assert (
            edits(run(self.KEY, head)).target == f"/v1/x%20y?a=%2f+b&&key={quote(SECRET, safe='')}&a=2&%zz=é"
        )

    def test_a_percent_encoded_handle_is_the_handle(self) -> None:
        """Clients may escape more than they must."""
        encoded = "".join(f"%{ord(char):02X}" for char in HANDLE)
        assert (
            edits(run(self.KEY, request(f"/?k%65y={encoded}"))).target == f"/?k%65y={quote(SECRET, safe='')}"
        )

    @pytest.mark.parametrize(
        ("target", "reason"),
        [
            (f"/?key={HANDLE}&key=mine", Reason.HANDLE_MISPLACED),
            (f"/?key=mine&k%65y={HANDLE}", Reason.HANDLE_MISPLACED),
            (f"/?key={HANDLE}x", Reason.HANDLE_MISPLACED),
            (f"/?key={HANDLE};x=1", Reason.HANDLE_MISPLACED),
            (f"/?key={HANDLE}#f", Reason.HANDLE_MISPLACED),
            (f"/?Key={HANDLE}", Reason.HANDLE_MISSING),
            (f"/{HANDLE}?key={HANDLE}", Reason.HANDLE_MISPLACED),
            (f"/?key={HANDLE}&log={OTHER}", Reason.HANDLE_MISPLACED),
            (f"/?key={HANDLE}&log=%63{HANDLE[1:]}", Reason.HANDLE_MISPLACED),
        ],
    )
    def test_two_readings_and_second_handles_are_refused(self, target: str, reason: Reason) -> None:
        """Exactly one parameter of the name, exactly the handle, and no handle anywhere else."""
        assert refused(run(self.KEY, request(target))) is reason

    @pytest.mark.parametrize(
        ("target", "want"), [("/a", "/a?key="), ("/a?b=1", "/a?b=1&key="), ("/?key=x", "/?key=")]
    )
    def test_without_a_handle_the_parameter_is_set_or_added(self, target: str, want: str) -> None:
        """`handle_required: false` adds what the client left out."""
        assert edits(run(self.KEY, request(target), handle=None)).target == want + quote(SECRET, safe="")


class TestPath:
    def test_one_segment_changes_and_the_colon_of_a_bot_token_stays(self) -> None:
        """Telegram's form: `/bot<token>/sendMessage`."""
        token = "123456:AAbbCCddEEff-_xyz"
        result = edits(run(PathInjection("bot"), request(f"/bot{HANDLE}/sendMessage?a=%2F"), secret=token))
        assert result.target == f"/bot{token}/sendMessage?a=%2F"

    def test_a_secret_cannot_make_a_second_segment_or_a_query(self) -> None:
        """Slash, question mark, hash and percent are encoded."""
        secret = "0123456789abcdef/../?x#y%00"
        result = edits(run(PathInjection(), request(f"/{HANDLE}/x"), secret=secret))
        assert result.target == "/0123456789abcdef%2F..%2F%3Fx%23y%2500/x"

    @pytest.mark.parametrize(
        ("target", "reason"),
        [
            (f"/bot{HANDLE}/bot{HANDLE}", Reason.HANDLE_MISPLACED),
            (f"/{HANDLE}", Reason.HANDLE_MISPLACED),
            (f"/xbot{HANDLE}", Reason.HANDLE_MISPLACED),
            (f"/bot{HANDLE}?again={HANDLE}", Reason.HANDLE_MISPLACED),
            (f"/?bot{HANDLE}", Reason.HANDLE_MISSING),
        ],
    )
    def test_anything_but_one_whole_segment_is_refused(self, target: str, reason: Reason) -> None:
        """Prefix and handle fill one segment, once."""
        assert refused(run(PathInjection("bot"), request(target))) is reason

    def test_a_secret_of_dots_is_unusable(self) -> None:
        """`..` would climb."""
        path = replace(credential(PathInjection()), scrub=False)
        result = substitute(request(f"/a/{HANDLE}"), None, (Injection(path, HANDLE),), {"api": ".."})
        assert refused(result, secret="") is Reason.SECRET_UNUSABLE


class TestBody:
    KIND = BodyInjection("auth.token")

    def test_only_the_string_in_the_json_field_changes(self) -> None:
        """Blanks, order, escapes and number forms of the rest keep their bytes."""
        before = '{ "n": 1.50e3,\r\n "é": "\\u00e9", "auth" : {"x":[1,2], "token": "%s"} }\n'
        secret = 'quote" back\\slash ü 0123'
        result = edits(
            run(self.KIND, request(headers=JSON, body=True), (before % HANDLE).encode(), secret=secret)
        )
        assert result.body == (before % json.dumps(secret)[1:-1]).encode()
        assert json.loads(result.body)["auth"]["token"] == secret

    def test_a_number_in_the_path_selects_from_a_list(self) -> None:
        """`keys.1` is the second of `keys`."""
        body = json.dumps({"keys": ["a", HANDLE]}).encode()
        result = edits(run(BodyInjection("keys.1"), request(headers=JSON, body=True), body))
        assert result.body is not None and json.loads(result.body) == {"keys": ["a", SECRET]}

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (f'{{"auth":{{"token":"x"}},"note":"{HANDLE}"}}', Reason.HANDLE_MISPLACED),
            (f'{{"auth":{{"token":"{HANDLE}"}},"note":"{HANDLE}"}}', Reason.HANDLE_MISPLACED),
            (f'{{"auth":{{"token":"\\u0063{HANDLE[1:]}"}},"note":"{HANDLE}"}}', Reason.HANDLE_MISPLACED),
            (f'{{"auth":{{"token":"\\u0063{HANDLE[1:]}"}}}}', Reason.HANDLE_MISPLACED),
            (f'{{"auth":{{"token":"{HANDLE}","token":"x"}}}}', Reason.BODY_UNREADABLE),
            (f'{{"auth":{{"token":"x","token":"{HANDLE}"}}}}', Reason.BODY_UNREADABLE),
            (f'{{"a":NaN,"auth":{{"token":"{HANDLE}"}}}}', Reason.BODY_UNREADABLE),
            (f'\ufeff{{"auth":{{"token":"{HANDLE}"}}}}', Reason.BODY_UNREADABLE),
            (f'{{"auth":{{"token":"{HANDLE}"}}}} x', Reason.BODY_UNREADABLE),
            ('{"auth":{}}', Reason.HANDLE_MISSING),
            ("[]", Reason.HANDLE_MISSING),
            ("[" * 40_000 + "]" * 40_000, Reason.BODY_UNREADABLE),
            ("[" + "[]," * 60_000 + "1]", Reason.BODY_UNREADABLE),
            ('{"auth":' + "9" * 5_000 + "}", Reason.BODY_UNREADABLE),
        ],
    )
    def test_json_that_can_be_read_twice_is_refused(self, body: str, reason: Reason) -> None:
        """Duplicate keys, escaped look-alikes, non-JSON, depth and size that would cost us."""
        assert refused(run(self.KIND, request(headers=JSON, body=True), body.encode())) is reason

    def test_a_form_field_changes_and_the_rest_keeps_its_bytes(self) -> None:
        """Slack's form: `token=…` among others; handles elsewhere in a body are inert text (I4)."""
        body = f"a=%2f+b&token={HANDLE}&text=mine+is+{OTHER}".encode()
        result = edits(run(BodyInjection("token"), request(headers=FORM, body=True), body))
        assert result.body == f"a=%2f+b&token={quote(SECRET, safe='')}&text=mine+is+{OTHER}".encode()

    @pytest.mark.parametrize(
        ("headers", "reason"),
        [
            ((), Reason.HEADER_FORM_REFUSED),
            (JSON + JSON, Reason.HEADER_FORM_REFUSED),
            ((("content-type", "text/plain"),), Reason.BODY_UNREADABLE),
            ((("content-type", "application/json; charset=utf-7"),), Reason.BODY_UNREADABLE),
            ((*JSON, ("content-encoding", "gzip")), Reason.BODY_UNREADABLE),
            ((*JSON, ("content-encoding", "identity"), ("content-encoding", "br")), Reason.BODY_UNREADABLE),
        ],
    )
    def test_a_body_that_is_not_plainly_what_it_says_is_refused(
        self, headers: Headers, reason: Reason
    ) -> None:
        """One content type, one of the credential's, UTF-8 and not compressed."""
        body = json.dumps({"auth": {"token": HANDLE}}).encode()
        assert refused(run(self.KIND, request(headers=headers, body=True), body)) is reason

    def test_bodies_over_the_limit_missing_or_not_buffered_are_refused(self) -> None:
        """The credential's `max_bytes` is what a plane buffers; without the body nothing is sent."""
        small, head = BodyInjection("t", max_bytes=9), request(headers=JSON, body=True)
        assert body_limit((Injection(credential(small), HANDLE),)) == 9
        assert refused(run(small, head, b'{"t":"xx"}')) is Reason.BODY_TOO_LARGE
        assert refused(run(small, head, None)) is Reason.PLANE_CANNOT
        assert refused(run(small, head, b"")) is Reason.HANDLE_MISSING
        assert refused(run(small, head, b'{"t":1}', handle=None)) is Reason.HANDLE_MISSING

    def test_digests_of_the_old_body_go(self) -> None:
        """A Content-MD5 that no longer fits would fail upstream, or be believed."""
        head = request(headers=(*JSON, ("content-md5", "eHg="), ("content-length", "80")), body=True)
        result = edits(run(BodyInjection("t"), head, json.dumps({"t": HANDLE}).encode()))
        assert result.remove_headers == ("content-md5",)


class TestSecret:
    @pytest.mark.parametrize("char", ["\r", "\n", "\0", "\x1b", "\t", "\x7f", "\x85", "\u2028", "日", " "])
    @pytest.mark.parametrize("place", ["{0}{1}", "{1}{0}"])
    def test_control_characters_and_outer_blanks_are_unusable(self, char: str, place: str) -> None:
        """CR, LF or NUL would end a header and begin another; the detail does not quote the secret."""
        secret = place.format(SECRET, char)
        result = run(HeaderInjection("x-key"), request(headers=(("x-key", HANDLE),)), secret=secret)
        assert refused(result) is Reason.SECRET_UNUSABLE

    def test_an_empty_secret_is_unusable_even_unscrubbed(self) -> None:
        """An empty value in the store must not become a request without a credential."""
        result = check_secret(credential(HeaderInjection("x-key"), scrub=False), "")
        assert result is not None and result.reason is Reason.SECRET_UNUSABLE

    def test_a_short_secret_needs_scrub_off(self) -> None:
        """Fifteen bytes stand in answers by chance; the detail says what to write."""
        kind = HeaderInjection("x-key")
        result = check_secret(credential(kind), "a" * 15)
        assert (
            result is not None and result.reason is Reason.SECRET_UNUSABLE and "scrub: off" in result.detail
        )
        assert check_secret(credential(kind), "a" * 16) is None
        assert check_secret(credential(kind, scrub=False), "a") is None

    def test_a_credential_without_a_fetched_value_is_refused(self) -> None:
        """The request never leaves with its handle instead."""
        injection = Injection(credential(HeaderInjection("x-key")), HANDLE)
        result = substitute(request(headers=(("x-key", HANDLE),)), None, (injection,), {})
        assert refused(result) is Reason.SECRET_MISSING


@pytest.mark.parametrize("handle", [HANDLE, "sk-ant-" + HANDLE])
def test_a_shaped_handle_goes_with_its_shape(handle: str) -> None:
    """`sk-ant-<handle>` is replaced whole, whether the plan names the bare handle or all of it."""
    shaped = replace(credential(HeaderInjection("x-api-key")), shape=Shape("sk-ant-"))
    head = request(headers=(("x-api-key", f"sk-ant-{HANDLE}"),))
    result = edits(substitute(head, None, (Injection(shaped, handle),), {"api": SECRET}))
    assert result.set_headers == (("x-api-key", SECRET),)


class TestSeveral:
    def test_two_credentials_go_to_their_two_places(self) -> None:
        """A header and a query parameter of one request."""
        pair = (
            Injection(credential(HeaderInjection("x-key"), name="a"), HANDLE),
            Injection(credential(QueryInjection("app"), name="b"), OTHER),
        )
        head = request(f"/?app={OTHER}", (("x-key", HANDLE),))
        result = edits(substitute(head, None, pair, {"a": "A" * 20, "b": "B" * 20}))
        assert result == Edits((("x-key", "A" * 20),), (), "/?app=" + "B" * 20, None)

    def test_two_credentials_for_one_header_are_refused(self) -> None:
        """Which of them wins must not depend on the order of a tuple."""
        kinds: tuple[InjectionKind, ...] = (HeaderInjection("Authorization"), BasicInjection("me"))
        pair = tuple(Injection(credential(kind, name=f"c{at}"), None) for at, kind in enumerate(kinds))
        assert refused(substitute(request(), None, pair, {"c0": SECRET, "c1": SECRET})) is Reason.PLANE_CANNOT

    def test_swapped_handles_are_refused(self) -> None:
        """The handle of one credential in the place of another is misplaced."""
        pair = (
            Injection(credential(HeaderInjection("x-a"), name="a"), HANDLE),
            Injection(credential(HeaderInjection("x-b"), name="b"), OTHER),
        )
        head = request(headers=(("x-a", OTHER), ("x-b", HANDLE)))
        assert refused(substitute(head, None, pair, {"a": SECRET, "b": SECRET})) is Reason.HANDLE_MISPLACED

    def test_sigv4_is_not_substituted(self) -> None:
        """A signing key put into a request would be the leak itself."""
        assert (
            refused(run(SigV4Injection(), request(headers=(("x-amz-security-token", HANDLE),))))
            is Reason.PLANE_CANNOT
        )


TEXT = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20)
SECRETS = st.text(st.characters(min_codepoint=0, max_codepoint=0x17F), max_size=40)
KINDS = st.sampled_from(
    [
        HeaderInjection("authorization", "Bearer {secret}"),
        HeaderInjection("x-key"),
        BasicInjection(),
        BasicInjection("user"),
        QueryInjection("key"),
        PathInjection("bot"),
    ]
)
QUERIES = st.lists(
    st.tuples(st.sampled_from(["a", "key", "b%20", ""]), st.text("ab=%+;2F", max_size=6)), max_size=4
)


def with_handle(kind: InjectionKind, query: str, headers: Headers) -> RequestHead:
    """A request that carries HANDLE where `kind` wants it, among a client's own things."""
    if isinstance(kind, HeaderInjection):
        value = kind.template.replace("{secret}", HANDLE)
        return request(f"/p?{query}", (*headers, (kind.name, value)))
    if isinstance(kind, BasicInjection):
        return request(f"/p?{query}", (*headers, ("authorization", basic("u", HANDLE))))
    if isinstance(kind, PathInjection):
        return request(f"/p/bot{HANDLE}/q?{query}", headers)
    return request(f"/p?{query}&key={HANDLE}", headers)


@given(kind=KINDS, pairs=QUERIES, secret=SECRETS, value=TEXT)
def test_the_head_differs_only_at_the_declared_place(
    kind: InjectionKind, pairs: list[tuple[str, str]], secret: str, value: str
) -> None:
    """Whatever the client sends and the store holds: one place changes, or the request is refused."""
    query = "&".join(f"{name}={text}" for name, text in pairs)
    head = with_handle(kind, query, (("x-mine", value),))
    result = run(kind, head, secret=secret)
    if isinstance(result, Deny):
        assert HANDLE not in repr(result)
        assert len(secret) < 16 or secret not in repr(result)
        unusable = check_secret(credential(kind), secret) is not None
        duplicate = isinstance(kind, QueryInjection) and any(name == "key" for name, _ in pairs)
        assert unusable or duplicate
        return
    assert not any(ord(char) < 0x20 or ord(char) > 0xFF for char in secret)
    assert result.body is None and result.remove_headers == ()
    assert HANDLE not in repr(result)
    if isinstance(kind, HeaderInjection | BasicInjection):
        assert result.target is None
        ((name, new),) = result.set_headers
        assert name == (kind.name if isinstance(kind, HeaderInjection) else "authorization")
        before, _, after = (head.get(name) or "").partition(HANDLE)
        if isinstance(kind, HeaderInjection):
            assert new == before + secret + after
        else:
            assert base64.b64decode(new[6:]).decode().partition(":")[2] == secret
    else:
        assert result.set_headers == () and result.target is not None
        before, _, after = head.target.partition(HANDLE)
        assert result.target.startswith(before) and result.target.endswith(after)
        middle = result.target[len(before) : len(result.target) - len(after)]
        assert unquote(middle) == secret and not set(middle) & set("/?#& ")


@given(
    st.text(st.characters(codec="utf-8"), max_size=30), st.text(max_size=30).filter(lambda t: HANDLE not in t)
)
def test_json_keeps_every_other_value(note: str, tail: str) -> None:
    """Any text beside the field survives to the byte, and the secret is only in its field."""
    for ascii_only in (True, False):
        text = json.dumps({"note": note, "auth": {"token": HANDLE}, "tail": [tail]}, ensure_ascii=ascii_only)
        body = text.encode("utf-8", "surrogatepass")
        result = run(BodyInjection("auth.token"), request(headers=JSON, body=True), body)
        if isinstance(result, Deny):
            assert result.reason is Reason.BODY_UNREADABLE  # a lone surrogate is not UTF-8
            continue
        assert result.body == text.replace(HANDLE, json.dumps(SECRET)[1:-1]).encode()
