"""Substitution: a secret comes to stand exactly where its handle stood, and nowhere else."""

import base64
from dataclasses import replace
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.injection import Injector
from coatcheck.decision.message import Edits, Headers, RequestHead
from coatcheck.decision.policy import Shape
from coatcheck.decision.substitute import check_secret
from coatcheck.decision.verdict import Injection
from coatcheck.injectors.basic import BasicInjection
from coatcheck.injectors.header import HeaderInjection
from coatcheck.injectors.path import PathInjection
from coatcheck.injectors.query import QueryInjection
from coatcheck.injectors.sigv4 import SigV4Injection
from tests.injectors.substitution import (
    HANDLE,
    OTHER,
    SECRET,
    basic,
    credential,
    edits,
    refused,
    request,
    run,
    substitute,
)


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

    def test_what_the_template_has_behind_the_secret_stays_behind_it(self) -> None:
        """`Token token=<handle>; v=1`, to the letter."""
        kind = HeaderInjection("x-key", "Token token={secret}; v=1")
        head = request(headers=(("x-key", f"Token token={HANDLE}; v=1"),))
        assert edits(run(kind, head)).set_headers == (("x-key", f"Token token={SECRET}; v=1"),)
        head = request(headers=(("x-key", f"Token token={HANDLE}; V=1"),))
        assert refused(run(kind, head)) is Reason.HANDLE_MISPLACED


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
            (basic("git", f"x:{HANDLE}"), Reason.HANDLE_MISPLACED),
        ],
    )
    @pytest.mark.parametrize("username", [None, "x-access-token"])
    def test_anything_but_strict_basic_with_the_handle_is_refused(
        self, value: str, reason: Reason, username: str | None
    ) -> None:
        """Base64 that decoders read differently, and passwords that only hold the handle, do not pass,
        whether the username is the client's or the policy's."""
        assert refused(run(BasicInjection(username), request(headers=(("authorization", value),)))) is reason

    def test_the_scheme_is_compared_without_case(self) -> None:
        """RFC 9110, 11.1."""
        head = request(headers=(("authorization", basic("git", HANDLE).replace("Basic", "bASIC")),))
        assert edits(run(BasicInjection(), head)).set_headers == (("authorization", basic("git", SECRET)),)

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

    def test_without_a_handle_and_without_a_fixed_username_the_clients_is_needed(self) -> None:
        """It is taken from whatever Basic the client sends, and asked for where it sends none."""
        head = request(headers=(("authorization", basic("git", "unused")),))
        result = edits(run(BasicInjection(), head, handle=None))
        assert result.set_headers == (("authorization", basic("git", SECRET)),)
        assert refused(run(BasicInjection(), request(), handle=None)) is Reason.HANDLE_MISSING

    def test_a_fixed_username_with_a_colon_is_refused(self) -> None:
        """The upstream would take its rest for the password's beginning (RFC 7617, 2)."""
        assert refused(run(BasicInjection("a:b"), request(), handle=None)) is Reason.PLANE_CANNOT

    def test_two_headers_are_refused(self) -> None:
        """Upstreams differ in which of two they take (I7)."""
        twice = (("authorization", basic("git", HANDLE)), ("authorization", basic("git", "mine")))
        assert refused(run(BasicInjection(), request(headers=twice))) is Reason.HEADER_FORM_REFUSED


class TestSecret:
    @pytest.mark.parametrize("char", ["\r", "\n", "\0", "\x1f", "\t", "\x7f", "\x9f", "\u0100", "日", " "])
    @pytest.mark.parametrize("place", ["{0}{1}", "{1}{0}"])
    def test_control_characters_and_outer_blanks_are_unusable(self, char: str, place: str) -> None:
        """CR, LF or NUL would end a header and begin another; the detail does not quote the secret."""
        secret = place.format(SECRET, char)
        result = run(HeaderInjection("x-key"), request(headers=(("x-key", HANDLE),)), secret=secret)
        assert refused(result) is Reason.SECRET_UNUSABLE

    @pytest.mark.parametrize("char", ["!", "~", "\xa0", "ÿ", "a b"])
    def test_other_latin_1_text_is_usable(self, char: str) -> None:
        """All that a header can carry (RFC 9110, 5.5), a blank within it included."""
        for secret in (char + SECRET, SECRET + char):
            assert check_secret(credential(HeaderInjection("x-key")), secret) is None

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

    def test_a_refusal_names_its_credential(self) -> None:
        """Of several in one request, an operator must know which; nothing else of it is told."""
        for secret, headers in ((SECRET, ()), ("", (("x-key", HANDLE),))):
            result = run(HeaderInjection("x-key"), request(headers=headers), secret=secret)
            assert isinstance(result, Deny) and result.detail.startswith("credential api: ")

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


REFERENCE = "ghp_" + "aB3" * 12
REFERRED = replace(credential(HeaderInjection("x-api-key")), shape=Shape("ghp_", 36))


def test_a_reference_has_its_shape_already() -> None:
    """It is looked for as it is."""
    head = request(headers=(("x-api-key", REFERENCE),))
    result = edits(substitute(head, None, (Injection(REFERRED, REFERENCE),), {"api": SECRET}))
    assert result.set_headers == (("x-api-key", SECRET),)


def test_a_shape_without_a_handle_asks_for_nothing() -> None:
    """`handle_required: false`."""
    shaped = replace(credential(HeaderInjection("x-api-key")), shape=Shape("sk-ant-"))
    result = edits(substitute(request(), None, (Injection(shaped, None),), {"api": SECRET}))
    assert result.set_headers == (("x-api-key", SECRET),)


@pytest.mark.parametrize("handle", [HANDLE, REFERENCE])
def test_a_handle_that_would_leave_beside_its_secret_is_an_alarm(handle: str) -> None:
    """A reference bears no mark: it is known by what it is."""
    injection = Injection(
        REFERRED if handle == REFERENCE else credential(HeaderInjection("x-api-key")), handle
    )
    for more in (("x-note", f"<{handle}>"), ("x-note", "")):
        head = request("/" if more[1] else f"/?a={handle}", (("x-api-key", handle), more))
        result = substitute(head, None, (injection,), {"api": SECRET})
        assert refused(result) is Reason.HANDLE_MISPLACED
        assert isinstance(result, Deny) and result.alarm


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

    def test_two_credentials_in_one_target_are_both_put_in(self) -> None:
        """The second goes into what the first has left."""
        pair = (
            Injection(credential(PathInjection("bot"), name="a"), HANDLE),
            Injection(credential(QueryInjection("app"), name="b"), OTHER),
        )
        result = substitute(request(f"/bot{HANDLE}?app={OTHER}"), None, pair, {"a": "A" * 20, "b": "B" * 20})
        assert edits(result) == Edits((), (), f"/bot{'A' * 20}?app={'B' * 20}", None)

    def test_two_credentials_for_one_header_are_refused(self) -> None:
        """Which of them wins must not depend on the order of a tuple."""
        kinds: tuple[Injector, ...] = (HeaderInjection("Authorization"), BasicInjection("me"))
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

    def test_a_signing_key_is_never_put_into_a_request(self) -> None:
        """That would be the leak itself: what is no key pair, or comes without a signature, is refused."""
        head = request(headers=(("x-amz-security-token", HANDLE),))
        assert refused(run(SigV4Injection(), head)) is Reason.SECRET_UNUSABLE
        pair = "AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
        assert refused(run(SigV4Injection(), head, secret=pair), secret=pair) is Reason.HANDLE_MISSING

    def test_a_signed_request_carries_no_other_credential(self) -> None:
        """A signature covers what it was made over, and what else was put in would not be."""
        pair = (
            Injection(credential(SigV4Injection(), name="a"), HANDLE),
            Injection(credential(HeaderInjection("x-b"), name="b"), OTHER),
        )
        head = request(headers=(("x-amz-security-token", HANDLE), ("x-b", OTHER)))
        result = substitute(head, None, pair, {"a": SECRET, "b": SECRET})
        assert refused(result) is Reason.HANDLE_MISPLACED
        assert isinstance(result, Deny) and result.alarm


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


def with_handle(kind: Injector, query: str, headers: Headers) -> RequestHead:
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
    kind: Injector, pairs: list[tuple[str, str]], secret: str, value: str
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
