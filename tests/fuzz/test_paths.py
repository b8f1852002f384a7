"""I7 for targets: an upstream that decodes, normalises or cuts an allowed path stays where the rule says."""

import posixpath
from collections.abc import Callable
from urllib.parse import unquote, urljoin

import httpx
from hypothesis import event, example, given
from hypothesis import strategies as st
from yarl import URL

from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.policy import HostPattern, PathPattern, Policy, Rule, match
from tests.fuzz.budget import budget

HOST = "api.example.org"
RULES = ("/v1/**", "/repos/*/issues", "/status")
_POLICY = Policy(
    "default",
    "owner",
    "hash",
    rules=tuple(
        Rule(
            text,
            (HostPattern(HOST),),
            frozenset({"GET"}),
            (PathPattern(tuple(text.removesuffix("/**").split("/")[1:]), text.endswith("/**")),),
        )
        for text in RULES
    ),
)

SEGMENTS = (
    *(
        "v1",
        "V1",
        "repos",
        "a",
        "issues",
        "status",
        "admin",
        "models",
        "",
        "~",
        "%7e",
        "%C3%A9",
        "a%20",
        "a.",
    ),
    *(
        "..",
        ".",
        "%2e%2e",
        "%2E.",
        "..;",
        ".;x",
        "..%00",
        "..%20",
        "...",
        "%252e%252e",
        "..%3b",
        ". .",
        "..;a=b",
    ),
    *(
        "%2f",
        "%2F..",
        "%5c..",
        "\\..",
        "%c0%ae%c0%ae",
        "%ef%bc%8f",
        "%e2%80%a5",
        "%EF%BC%8E.",
        "%u002e",
        "..\\",
    ),
    *(
        ";a=b",
        "v1;x",
        "%3Bx",
        "%09",
        "%0a",
        "%zz",
        "%",
        "%76%31",
        "%2525",
        "%25%32%65",
        "a%2fb",
        "%00",
        "a%00",
    ),
)
_segments = st.sampled_from(SEGMENTS) | st.text(st.characters(max_codepoint=0x17F), max_size=3)
_starts = st.sampled_from([["v1"], ["v1"], ["v1", "a"], ["repos", "a", "issues"], ["status"], []])
_queries = st.sampled_from(["", "", "?", "?a=b", "?../admin", "?a=/../..", "#x", "?a#b", "?%2e%2e/"])
targets = st.builds(
    lambda start, rest, query: "/" + "/".join([*start, *rest]) + query,
    _starts,
    st.lists(_segments, max_size=3),
    _queries,
)


def _without_parameters(path: str) -> str:
    """As Tomcat and Spring do, before they resolve dots."""
    return "/".join(part.partition(";")[0] for part in path.split("/"))


def _plain(path: str) -> str:
    return posixpath.normpath(path).replace("//", "/")


READERS: tuple[Callable[[str], str], ...] = (
    _plain,
    lambda path: _plain(unquote(path)),
    lambda path: _plain(unquote(unquote(path))),
    lambda path: _plain(unquote(path, "latin-1")),
    lambda path: _plain(_without_parameters(path)),
    lambda path: _plain(_without_parameters(unquote(path))),
    lambda path: _plain(unquote(path).replace("\\", "/")),
    lambda path: _plain("/".join(part.rstrip(". ") for part in unquote(path).split("/"))),  # Windows
    lambda path: _plain(unquote(path).partition("\0")[0]),  # C
    lambda path: urljoin(f"https://{HOST}/", path).removeprefix(f"https://{HOST}"),
    lambda path: httpx.URL(f"https://{HOST}{path}").path,
    lambda path: URL(f"https://{HOST}{path}").path,
)


def _fits(rule: str, path: str) -> bool:
    """The policy's word, naively: equal segments, `*` for one, `/**` for what is below."""
    want, have = rule.removesuffix("/**").split("/"), path.split("/")
    if not (len(have) == len(want) or (rule.endswith("/**") and len(have) > len(want))):
        return False
    return all(one in ("*", other) for one, other in zip(want, have, strict=False))


@given(targets)
@example("/v1/../admin")
@example("/v1/..%20/admin")
@example("/v1/models")
@example("/repos/x/issues")
@budget(500)
def test_every_reader_of_an_allowed_path_stays_inside_its_rule(target: str) -> None:
    """A dozen ways in which servers read paths: none of them leads out of what the rule allows."""
    head = RequestHead("GET", target, ())
    rule = match(_POLICY, Destination("https", HOST, 443), head)
    if not isinstance(rule, Rule):
        return
    event(rule.name)
    for reader in READERS:
        # what stands for one segment may be named otherwise, decoded or cut, but stays one segment
        read = reader(head.path)
        assert _fits(rule.name, read), (reader, read)
