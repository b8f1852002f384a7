"""Every handle in a head is found, wherever it hides, and nothing else is taken for one."""

import base64
from dataclasses import replace
from hashlib import sha256
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.injection import Injector, Location
from coatcheck.decision.message import RequestHead
from coatcheck.decision.policy import Credential, HostPattern, SecretRef, Shape
from coatcheck.decision.search import MAX_FOUND, find, mask, placed, stands_at
from coatcheck.injectors.basic import BasicInjection
from coatcheck.injectors.body import BodyInjection
from coatcheck.injectors.header import HeaderInjection
from coatcheck.injectors.path import PathInjection
from coatcheck.injectors.query import QueryInjection
from coatcheck.injectors.sigv4 import SigV4Injection
from tests.decision.cost import LINEAR, growth

HANDLE = "cch_eyJhbGciOi-_x.eyJzaWQi.c2lnbmF0dXJl"
GHP = Shape("ghp_", 36)
BEARER = HeaderInjection("authorization", "Bearer {secret}")
REFERENCE = "ghp_" + "aB3" * 12


def head(target: str = "/v1/models", *headers: tuple[str, str]) -> RequestHead:
    return RequestHead("GET", target, headers)


def credential(inject: Injector, shape: Shape | None = None) -> Credential:
    return Credential("c", SecretRef("m", "s", "p", "f"), (), inject, shape=shape)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def hidden(text: str, rounds: int = 1) -> str:
    """Every character percent-encoded, `rounds` times."""
    for _ in range(rounds):
        text = "".join(f"%{ord(char):02x}" for char in text) if rounds == 1 else text
    if rounds == 2:
        text = quote("".join(f"%{ord(char):02X}" for char in text), safe="")
    return text


@pytest.mark.parametrize(
    ("target", "headers", "location"),
    [
        ("/", [("authorization", f"Bearer {HANDLE}")], Location.HEADER),
        ("/", [("x-anything", f"a {HANDLE} b")], Location.HEADER),
        ("/", [("cookie", f"a=1; session={HANDLE}; b=2")], Location.HEADER),
        ("/", [("cookie", f"session={hidden(HANDLE)}")], Location.HEADER),
        ("/", [("referer", f"https://x.example/?k={hidden(HANDLE, 2)}")], Location.HEADER),
        ("/", [(HANDLE, "1")], Location.HEADER),
        ("/", [("authorization", basic("x-access-token", HANDLE))], Location.BASIC),
        ("/", [("authorization", basic(HANDLE, "x"))], Location.BASIC),
        ("/", [("authorization", basic("u", hidden(HANDLE)))], Location.BASIC),
        ("/", [("authorization", basic("u", HANDLE).replace("=", ""))], Location.BASIC),
        ("/", [("authorization", basic("u", HANDLE).replace("Basic ", "bASIC   "))], Location.BASIC),
        ("/", [("proxy-authorization", basic("u", HANDLE))], Location.BASIC),
        (f"/bot{HANDLE}/send", [], Location.PATH),
        (f"/a/{hidden(HANDLE)}", [], Location.PATH),
        (f"/a/{hidden(HANDLE, 2)}", [], Location.PATH),
        (f"/?key={HANDLE}", [], Location.QUERY),
        (f"/?key={hidden(HANDLE)}&x", [], Location.QUERY),
        (f"/?key={hidden(HANDLE, 2)}", [], Location.QUERY),
        (f"/?{HANDLE}", [], Location.QUERY),
        (f"/?a=b?{HANDLE}", [], Location.QUERY),
    ],
)
def test_a_handle_is_found_wherever_it_stands(
    target: str, headers: list[tuple[str, str]], location: Location
) -> None:
    """Plain, in Basic, and behind one or two rounds of percent-encoding."""
    found = find(head(target, *headers))
    assert [(item.location, item.text) for item in found] == [(location, HANDLE)]


@given(
    st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=40),
    st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=40),
    st.sampled_from(["header", "path", "query"]),
    st.integers(0, 2),
)
def test_no_surroundings_hide_a_handle(before: str, after: str, place: str, rounds: int) -> None:
    """Whatever stands around it, encoded or not, some found text contains the handle."""
    value = before + (hidden(HANDLE, rounds) if rounds else HANDLE) + after
    where = {"header": head("/", ("x", value)), "path": head("/" + value), "query": head("/?a=" + value)}
    assert any(HANDLE in item.text for item in find(where[place]))


@given(st.text(st.characters(min_codepoint=0, max_codepoint=0x2FF), max_size=200))
def test_no_head_makes_the_search_fail(text: str) -> None:
    """Any bytes, as target, header value or Basic credential, get an answer."""
    for request in (head(text), head("/", ("authorization", "Basic " + text)), head("/", ("x", text))):
        find(request, (GHP,), lambda _: True)
        mask(text, (GHP,))


@pytest.mark.parametrize(
    "text", ["cch_", "/docs/cch_notes", "CCH_EY", "cch_ey", "Basic ====", "%zz%", "cch_e%79"]
)
def test_words_that_only_look_a_little_like_a_handle_are_left_alone(text: str) -> None:
    """A handle begins with our prefix and a JWS header, so that a page named cch_notes can be read."""
    assert find(head("/" + text, ("x", text), ("authorization", text))) == ()


def test_a_prefix_in_capitals_is_still_found() -> None:
    """It cannot be genuine, and is refused for that, instead of passing unseen."""
    assert [item.text for item in find(head("/", ("x", HANDLE.replace("cch", "CCH"))))] != []


def test_the_search_stops_at_a_bound() -> None:
    """A head full of handles costs no more than MAX_FOUND of them."""
    assert len(find(head("/", ("x", " ".join([HANDLE] * 500))))) == MAX_FOUND


@pytest.mark.parametrize(
    ("inject", "shape", "request_head", "declared"),
    [
        (BEARER, None, head("/", ("authorization", f"Bearer {HANDLE}")), True),
        (HeaderInjection("Authorization"), None, head("/", ("authorization", HANDLE)), True),
        (BEARER, None, head("/", ("authorization", f"bEARER {HANDLE}")), True),
        (BEARER, None, head("/", ("authorization", f"Bearer x{HANDLE}")), False),
        (BEARER, None, head("/", ("authorization", f"Bearer {HANDLE} x")), False),
        (BEARER, None, head("/", ("authorization", HANDLE)), False),
        (BEARER, None, head("/", ("x-other", f"Bearer {HANDLE}")), False),
        (HeaderInjection("x-api-key"), Shape("sk-ant-"), head("/", ("x-api-key", f"sk-ant-{HANDLE}")), True),
        (HeaderInjection("x-api-key"), Shape("sk-ant-"), head("/", ("x-api-key", f"SK-ANT-{HANDLE}")), False),
        (HeaderInjection("x-api-key"), Shape("sk-ant-"), head("/", ("x-api-key", HANDLE)), False),
        (HeaderInjection("x-api-key"), None, head("/", ("x-api-key", hidden(HANDLE))), False),
        (HeaderInjection("x-api-key"), None, head("/", (HANDLE, "x-api-key")), False),
        (BasicInjection(), None, head("/", ("authorization", basic("git", HANDLE))), True),
        (BasicInjection(), None, head("/", ("authorization", basic("", HANDLE))), True),
        (BasicInjection(), None, head("/", ("authorization", basic("a:b", HANDLE))), False),
        (BasicInjection(), None, head("/", ("authorization", basic(HANDLE, ""))), False),
        (BasicInjection(), None, head("/", ("proxy-authorization", basic("git", HANDLE))), False),
        (QueryInjection("key"), None, head(f"/?a=1&key={HANDLE}"), True),
        (QueryInjection("key"), None, head(f"/?KEY={HANDLE}"), False),
        (QueryInjection("key"), None, head(f"/?k%65y={HANDLE}"), False),
        (QueryInjection("key"), None, head(f"/?key={HANDLE};x=1"), False),
        (PathInjection("bot"), None, head(f"/bot{HANDLE}/send"), True),
        (PathInjection("bot"), None, head(f"/{HANDLE}/send"), False),
        (PathInjection("bot"), None, head(f"/bot{HANDLE};v=1/send"), False),
        (SigV4Injection(), None, head("/", ("x-amz-security-token", HANDLE)), True),
        (SigV4Injection(), None, head(f"/?X-Amz-Security-Token={HANDLE}"), True),
        (SigV4Injection(), None, head("/", ("authorization", HANDLE)), False),
        (BodyInjection("key"), None, head("/", ("key", HANDLE)), False),
    ],
)  # fmt: skip
def test_a_handle_stands_at_its_place_only_if_it_is_all_that_stands_there(
    inject: Injector, shape: Shape | None, request_head: RequestHead, declared: bool
) -> None:
    """Name, template and shape must fit exactly; only the scheme's case is free (RFC 9110, 11.1)."""
    (item,) = find(request_head)
    assert stands_at(item, credential(inject, shape)) is declared


def test_a_reference_is_found_when_it_is_known_and_only_then() -> None:
    """A real token of the same shape is not ours to report."""
    request = head("/", ("authorization", f"Bearer {REFERENCE}"), ("x", "ghp_" + "z" * 36))
    found = find(request, (GHP,), {REFERENCE}.__contains__)
    assert [item.text for item in found] == [REFERENCE]
    assert stands_at(found[0], credential(BEARER, GHP))


@pytest.mark.parametrize(
    "value", [f"x{REFERENCE}x", f"ghp_{REFERENCE}", hidden(REFERENCE, 2), basic("u", REFERENCE)]
)
def test_a_reference_is_found_glued_and_encoded_too(value: str) -> None:
    """References hide no better than signed handles."""
    found = find(head("/", ("authorization", value)), (GHP,), {REFERENCE}.__contains__)
    assert [item.text for item in found] == [REFERENCE]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"/bot{HANDLE}/send", "/botcch_***/send"),
        (f"/a/{HANDLE}/{HANDLE}", "/a/cch_***/cch_***"),
        (f"/{REFERENCE}/{HANDLE}", "/***/cch_***"),
        (f"/%20{hidden(HANDLE)}/x", "/ cch_***/x"),
        (f"/{hidden(HANDLE, 2)}/x", "/cch_***/x"),
        (f"/{HANDLE}/%2e", "/cch_***/%2e"),
        ("/plain%20path", "/plain%20path"),
        ("/cch_notes", "/cch_notes"),
    ],
)
def test_masked_paths_hold_no_handle(text: str, masked: str) -> None:
    """What goes to the audit log shows that a handle was there, and not which."""
    assert mask(text, (GHP,)) == masked


@given(
    st.lists(st.sampled_from([HANDLE, REFERENCE, hidden(HANDLE), hidden(HANDLE, 2), "/", "a", "%", "%25"]))
)
def test_nothing_can_be_found_in_a_masked_path(parts: list[str]) -> None:
    """The search for handles is itself the judge of the mask."""
    assert find(head(mask("".join(parts), (GHP,))), (GHP,), lambda _: True) == ()


def test_a_handle_may_stand_at_any_declared_place_but_nowhere_else() -> None:
    """Clients of one API differ: `also` names further places, and the credential follows the handle."""
    credential = Credential(
        "anthropic",
        SecretRef("vault", "secret", "anthropic", "api_key"),
        (HostPattern("api.anthropic.com"),),
        HeaderInjection("X-Api-Key"),
        other_injectors=(HeaderInjection("Authorization", "Bearer {secret}"),),
    )
    for name, value in (("x-api-key", HANDLE), ("authorization", f"Bearer {HANDLE}")):
        (found,) = find(RequestHead("GET", "/", ((name, value),)))
        there = placed(found, credential)
        assert there is not None
        assert isinstance(there.inject, HeaderInjection)
        assert there.inject.name.lower() == name
    (found,) = find(RequestHead("GET", "/", (("x-other", HANDLE),)))
    assert placed(found, credential) is None


def test_without_issued_references_nothing_of_their_shape_is_one() -> None:
    """The default knows none."""
    assert find(head("/" + REFERENCE), (GHP,)) == ()


def test_a_handle_that_is_placed_elsewhere_has_one_place() -> None:
    """The credential that comes back is for that place alone."""
    both = replace(credential(BEARER), other_injectors=(HeaderInjection("X-Key"),))
    (found,) = find(head("/", ("x-key", HANDLE)))
    there = placed(found, both)
    assert there is not None and there.inject == HeaderInjection("X-Key") and there.other_injectors == ()


def test_two_rounds_of_decoding_are_looked_behind_and_no_third() -> None:
    """`mask` reads latin-1, as `find` does; three rounds are nobody's reading."""
    thrice = quote(hidden(HANDLE, 2), safe="")
    assert find(head("/" + thrice)) == ()
    assert mask(thrice) == thrice
    assert mask("%E9" + hidden(HANDLE)).startswith("\xe9cch_")


@pytest.mark.parametrize(
    ("target", "headers", "location", "name"),
    [
        ("/a/" + REFERENCE, (), Location.PATH, ""),
        ("/a?key=" + REFERENCE, (), Location.QUERY, "key"),
        (f"/a?{REFERENCE}=1", (), Location.QUERY, ""),
        ("/a", (("x", "v " + REFERENCE),), Location.HEADER, "x"),
        ("/a", ((REFERENCE, "v"),), Location.HEADER, ""),
        ("/a/" + HANDLE, (), Location.PATH, ""),
        (f"/a?key={HANDLE}=x", (), Location.QUERY, "key"),
        (f"/a?{HANDLE}", (), Location.QUERY, ""),
        ("/a", ((HANDLE.lower(), "v"),), Location.HEADER, ""),
        ("/a", (("authorization", basic("u", HANDLE).replace(" ", "")),), Location.BASIC, "authorization"),
    ],
)
def test_a_handle_or_reference_is_found_with_its_place_and_its_name(
    target: str, headers: tuple[tuple[str, str], ...], location: Location, name: str
) -> None:
    """Nothing is encoded, nothing else looks like a handle: each look-out is alone with it."""
    (found,) = find(head(target, *headers), (GHP,), lambda text: text == REFERENCE)
    assert (found.location, found.name, found.text.lower()) == (
        location,
        name,
        (REFERENCE if found.text == REFERENCE else HANDLE).lower(),
    )
    assert not found.decoded


def test_what_stands_before_a_hidden_handle_is_latin_1() -> None:
    """As header values are."""
    (found,) = find(head("/", ("x", "%E9" + hidden(HANDLE))))
    assert (found.before, found.text, found.decoded) == ("\xe9", HANDLE, True)


def test_a_reference_is_found_behind_what_only_looks_like_one() -> None:
    """Prefixes may overlap themselves."""
    found = find(head("/aaab123"), (Shape("aa", 4),), lambda text: text == "aab123")
    assert [item.text for item in found] == ["aab123"]


def test_basic_is_read_in_both_alphabets_of_base64() -> None:
    """A lenient server reads either."""
    coded = base64.urlsafe_b64encode(b"\xfb\xff\xfe:" + HANDLE.encode()).decode()
    assert "-" in coded and "_" in coded
    (found,) = find(head("/", ("authorization", "Basic " + coded)))
    assert (found.location, found.text, found.before) == (Location.BASIC, HANDLE, "\xfb\xff\xfe:")


@given(st.text("%2541aFxé\u0103", max_size=40), st.sampled_from(["%63", "%2563"]))
def test_percent_encoding_is_read_as_urllib_reads_it(text: str, first: str) -> None:
    """Stray percent signs, escapes of percent signs, characters beyond latin-1."""
    (found,) = find(head("/", ("x", text + first + HANDLE[1:])))
    once = unquote(text, encoding="latin-1")
    assert found.before == (once if first == "%63" else unquote(once, encoding="latin-1"))


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("/aab" + "c" * 40 + "/x", "/***" + "c" * 18 + "/x"),
        ("/ghp_" + "ghp0" * 12 + "/x", "/***" + "ghp0" * 3 + "/x"),
        (f"/ghp_{'c' * 33}cch_eyJx/y", "/***/y"),
        (f"/ghp_{'c' * 30}cch_eyJx/y", f"/ghp_{'c' * 30}cch_***/y"),
    ],
)
def test_places_that_overlap_are_masked_as_one(text: str, masked: str) -> None:
    """What follows them stays."""
    assert mask(text, (GHP, Shape("aa", 22), Shape("ab", 22))) == masked


def unknown(text: str) -> bool:
    """As the state asks: by a digest."""
    return not sha256(text.encode()).digest()


@pytest.mark.parametrize("shapes", [(), (GHP,), (GHP, Shape("AIza", 35), Shape("aaaaaaab", 128))])
@pytest.mark.parametrize(
    "piece",
    [
        *("%25", "%", "%2541", "%63ch_eyJ", "cch_eyJx;", "%63ch_eyJx%20", "ghp_", "AIza", "%41Iza", "a"),
        *("/", "/%25", "&", "&%25=%25", "/cch_ey", "/%25abcd", REFERENCE, REFERENCE + "/"),
    ],
)
def test_the_cost_of_a_head_is_linear(piece: str, shapes: tuple[Shape, ...]) -> None:
    """In its target, in a header, in Basic, beside a real handle, and masked for the audit log. Refused
    requests whose heads took 47 to 305 ms made everybody wait."""

    def search(size: int) -> None:
        text = (piece * (size // len(piece) + 1))[:size]
        for request in (
            head("/" + text),
            head("/?" + text, ("authorization", basic("u", "x"))),
            head("/", ("x", text), ("authorization", basic(text, "ghp_"))),
        ):
            find(request, shapes, unknown)
        find(head(f"/{text}/{HANDLE}?{text}", ("x", "basic")), shapes, unknown)
        mask("/" + text, shapes)
        mask(f"/{text}{hidden(HANDLE)}", shapes)

    assert growth(search, 4 * 1024) < LINEAR
