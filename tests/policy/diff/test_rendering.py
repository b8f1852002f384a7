"""A comparison as text, Markdown and JSON."""

import json
from dataclasses import replace

from coatcheck.decision.message import OriginClass
from coatcheck.decision.policy import HostPattern, PathPattern
from coatcheck.policy import load_policy
from coatcheck.policy.diff.change import Change, Direction, Sessions, Subject, quoted
from coatcheck.policy.diff.difference import compare
from coatcheck.policy.diff.rendering import as_json, as_markdown, as_text
from coatcheck.policy.diff.sets import HostSet, Odd, PathSet, Reach

REACH = Reach(
    hosts=(HostSet(HostPattern("x", True), (HostPattern("a.x"),)), HostSet(HostPattern("y"))),
    doors=(("https", 8443), ("http", 80)),
    methods=("GET", "PUT"),
    websocket=(False, True),
    paths=(PathSet((PathPattern(("a",), True),)), PathSet(odd=Odd.ONLY)),
)
CHANGE = Change(Direction.WIDENS, "web", Subject.HANDLE, "more for `key`", "key", reaches=(REACH,))


def test_text_is_one_line_a_change_with_what_it_reaches() -> None:
    """And the count at the end, by which a reader sees whether to read on."""
    narrowed = Change(Direction.NARROWS, "web", Subject.POLICY, "less")
    assert as_text([CHANGE, narrowed]) == (
        "widens: more for `key`\n"
        "    *.x except a.x, y (port 8443, plain HTTP on port 80): GET, PUT also as WebSocket on /a/**, "
        "paths with // or ;\n"
        "narrows: less\n"
        "1 widens, 1 narrows, 0 otherwise\n"
    )
    assert as_text([]) == "nothing changes in meaning\n"


def test_a_tunnel_has_hosts_and_ports_only() -> None:
    """Nobody sees more of it."""
    tunnel = Reach((HostSet(HostPattern("x")),), (("https", 443),), (), (), ())
    assert "\n    x\n" in as_text([Change(Direction.WIDENS, "p", Subject.TUNNEL, "t", reaches=(tunnel,))])


def test_many_hosts_are_counted_in_text_and_listed_in_json() -> None:
    """A comment of a thousand lines is not read."""
    hosts = tuple(HostSet(HostPattern(f"h{index}.x")) for index in range(30))
    change = Change(
        Direction.WIDENS, "p", Subject.BARE, "t", reaches=(Reach(hosts, REACH.doors, (), (), ()),)
    )
    assert "h11.x, and 18 more" in as_text([change])
    assert len(as_json([change])[0]["requests"][0]["hosts"]) == 30


def test_json_holds_every_set() -> None:
    """A program decides by it, so nothing is shortened or left to be parsed."""
    mtls = Sessions(frozenset({OriginClass.MTLS}))
    change = replace(CHANGE, direction=Direction.NARROWS, sessions=mtls)
    (found,) = json.loads(json.dumps(as_json([change])))
    assert found["direction"] == "narrows" and found["credential"] == "key"
    assert found["sessions"]["origins"] == ["mtls"] and len(found["sessions"]["isolations"]) == 5
    assert found["requests"] == [
        {
            "hosts": [{"host": "*.x", "except": ["a.x"]}, {"host": "y", "except": []}],
            "doors": [{"scheme": "https", "port": 8443}, {"scheme": "http", "port": 80}],
            "methods": ["GET", "PUT"],
            "websocket": [False, True],
            "paths": [
                {"within": ["/a/**"], "except": [], "ambiguous": "without"},
                {"within": [], "except": [], "ambiguous": "only"},
            ],
        }
    ]


def test_markdown_has_a_heading_a_direction() -> None:
    """What widens comes first."""
    text = as_markdown([CHANGE])
    assert text.startswith(
        "### What this changes in meaning\n\n**Widens**\n\n- more for `key`\n  - `*.x except a.x`, `y`"
    )
    assert "Narrows" not in text
    assert "Nothing: every request gets the same answer" in as_markdown([])


HOSTILE = "`@org/all` <img src=x onerror=alert(1)> ![x](//evil.example) [a](b) | # **"


def test_a_name_in_a_policy_is_only_a_name_in_a_comment() -> None:
    """Anyone who opens the pull request writes the rule's name: no mention, link, image or HTML comes of
    it."""
    text = f"version: 1\nowner: x\nrules: [{{name: '{HOSTILE}', hosts: [a.example], methods: [GET], http2: "
    old, new = (load_policy("p", (text + value + "}]\n").encode()) for value in ("false", "true"))
    (line,) = [line for line in as_markdown(compare("p", old, new)).splitlines() if line.startswith("- ")]
    assert quoted(HOSTILE) in line
    assert "@" not in line.replace(quoted(HOSTILE), "") and "<" not in line.replace(quoted(HOSTILE), "")


def test_code_cannot_be_left_from_within() -> None:
    """CommonMark 6.1: a span ends at a run of backticks as long as the one that began it."""
    for name in ("a", "`", "``", "a`b``c", "`a`", "```` x"):
        said = quoted(name)
        fence = said[: len(said) - len(said.lstrip("`"))]
        inside = said[len(fence) : -len(fence)]
        assert said.endswith(fence) and fence not in inside and inside.strip(" ") == name.strip(" ")
