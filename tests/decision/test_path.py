"""Targets have one reading, and everything with two is refused."""

import posixpath
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.denial import Reason
from coatcheck.decision.path import MAX_TARGET, ambiguous, canonical_path, check_target

GOOD = [
    "/",
    "/v1/chat/completions",
    "/v1/models?limit=2&x=%2e%2e%2f",
    "/v1beta/models/gemini-pro:generateContent?alt=sse",
    "/.well-known/openid-configuration",
    "/a/..b/.c/d../...",
    "/a/..%20b/%20",
    "/bucket//key",
    "/matrix;a=1/b",
    "/caf%C3%A9/%20/x%2By",
    "/~user/%7Euser",
    "/100%25/of%25x",
    "/@scope/name",
    "/?q=a;b//c\\d/../e%zz",
    "/x?",
    "/%25a",
    "/%25ga",
    "/a/..X",
    "/%EF%BC%B8",
    "/" + "a" * (MAX_TARGET - 1),
]

BAD = [
    "",
    "*",
    "v1",
    "?x",
    "https://api.openai.com/v1",
    "//evil.example/v1",
    "/.",
    "/..",
    "/a/../b",
    "/a/./b",
    "/a/..",
    "/../etc/passwd?x",
    "/a/..;/b",
    "/a/..;x=1/b",
    "/a/.;/b",
    "/a/;/b",
    "/a/..%20/b",
    "/a/%20../b",
    "/a/.%20",
    "/a/..%C2%A0/b",
    "/;x/b",
    "/a/%2e%2e/b",
    "/a/%2E./b",
    "/a/x%2ey",
    "/a%2fb",
    "/a%2Fb",
    "/a%5cb",
    "/a\\..\\b",
    "/%63hat",
    "/%41",
    "/%5f",
    "/a%00b",
    "/a%0d%0ab",
    "/a%7fb",
    "/a%",
    "/a%2",
    "/a%zz",
    "/a%u002e",
    "/a%252e%252e/b",
    "/a%2525",
    "/a%252ex",
    "/a%20%00",
    "/a%2541",
    "/a%c0%ae%c0%ae/b",
    "/a%ff",
    "/a%ed%a0%80",
    "/a%EF%BC%8Fb",
    "/a/%E2%80%A5/b",
    "/a/%EF%BC%8E%EF%BC%8E/b",
    "/a#b",
    "/a?b#c",
    "/a b",
    "/a?b c",
    "/a\tb",
    "/a?\r\nX: y",
    "/a\x00",
    "/a?\x7f",
    "/caf\xe9",
    "/a?\x85",
    "/" + "a" * MAX_TARGET,
]


@pytest.mark.parametrize("target", GOOD)
def test_a_plain_target_is_accepted(target: str) -> None:
    """Real APIs use colons, dots, tildes, semicolons and doubled slashes."""
    assert check_target(target) is None


@pytest.mark.parametrize("target", BAD)
def test_a_target_with_two_readings_is_refused(target: str) -> None:
    """The reason is the form, and the detail says what without repeating the target."""
    deny = check_target(target)
    assert deny is not None and deny.reason is Reason.PATH_FORM_REFUSED
    assert deny.detail and (len(target) < 3 or target not in deny.detail)


SEGMENT = st.text(alphabet="ab.%;2efF5cC3A97~\\é/", max_size=12)


@given(
    st.lists(SEGMENT | st.sampled_from(["..", "%2e%2e", "..;", "", "%C3%A9"]), max_size=6).map(
        lambda s: "/" + "/".join(s)
    )
)
def test_an_accepted_path_survives_decoding_and_normalising(path: str) -> None:
    """Decoded once, decoded twice, stripped of parameters: it never climbs, and its slashes stay."""
    if check_target(path) is not None:
        return
    once = unquote(path, errors="strict")
    twice = unquote(once)
    for read in (once, twice):
        assert read.count("/") == path.count("/") and "\\" not in read
        bare = "/".join(segment.partition(";")[0] for segment in read.split("/"))
        assert ".." not in bare.split("/") and "." not in bare.split("/")
        assert posixpath.normpath(bare).count("/") <= max(bare.count("/"), 1)
    assert once == twice
    assert unquote(canonical_path(path)) == once


@given(st.text(max_size=40))
def test_any_text_gets_an_answer(text: str) -> None:
    """No input raises, and what passes is printable ASCII that begins with one slash."""
    if check_target("/" + text) is None:
        assert text.isascii() and ("/" + text).isprintable() and not text.startswith("/")


def test_equivalent_escapes_have_one_canonical_path() -> None:
    """Hex digits fold to upper case and an escaped tilde is a tilde."""
    assert canonical_path("/caf%c3%a9/%7ea") == canonical_path("/caf%C3%A9/~a") == "/caf%C3%A9/~a"
    assert canonical_path("/v1/chat") == "/v1/chat"


def test_paths_whose_segments_shift_are_ambiguous() -> None:
    """Empty segments and parameters, escaped or not."""
    assert all(ambiguous(path) for path in ("/a//b", "/a/", "/a;x/b", "/a%3bx", "/a%3Bx") if path != "/a/")
    assert not any(ambiguous(path) for path in ("/", "/a/", "/a/b", "/a%20b"))
