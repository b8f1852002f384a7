"""Whatever stands in a policy file: it is a policy, or problems with their places. No text opens more."""

import io
from pathlib import Path
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.policy import Policy, Rule, host_allowed, match
from coatcheck.policy import PolicyError, load_policy
from tests.fuzz.budget import budget

WORKING = sorted((Path(__file__).parent.parent / "policy/file").glob("working_*.yaml"))
EVERYTHING = next(path.read_text() for path in WORKING if path.stem == "working_everything")
LINES = EVERYTHING.splitlines()

SCALARS = (
    *(
        "",
        "null",
        "true",
        "1",
        "-1",
        "1e999",
        "0x10",
        "~",
        "*",
        '"*"',
        "*.org",
        "api.example.org",
        "[]",
        "{}",
    ),
    *(
        "&a x",
        "*a",
        "!!python/object:os.system x",
        "!x y",
        "|",
        ">",
        "GET",
        "[GET, POST]",
        "/v1/**",
        "/**",
        "\t",
    ),
    *(
        '"\\u0000"',
        "é",
        "2026-11-21",
        "[[[[[[[[x]]]]]]]]",
        "{? : x}",
        "<<: *a",
        "60/minute",
        "9" * 40,
        "'" * 3,
    ),
    *("/v1/../x", "'" + "a" * 300),
)
KEYS = (
    *(
        "version",
        "owner",
        "credentials",
        "rules",
        "name",
        "hosts",
        "methods",
        "paths",
        "secret",
        "inject",
        "<<",
    ),
    *(
        "ports",
        "limits",
        "tunnel",
        "websocket",
        "plain_http",
        "filesystem",
        "handle",
        "origins",
        "xyz",
        "",
        "1",
    ),
)
_scalars, _keys = st.sampled_from(SCALARS), st.sampled_from(KEYS)


@st.composite
def edited(draw: st.DrawFn) -> str:
    """A file that works, after somebody had an accident with it."""
    lines = list(LINES)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        what = draw(st.integers(0, 6))
        if what == 0:
            del lines[at]
        elif what == 1:
            lines.insert(at, lines[draw(st.integers(0, len(lines) - 1))])
        elif what == 2:
            before = lines[at].partition(":")[0]
            lines[at] = f"{before}: {draw(_scalars)}"
        elif what == 3:
            lines.insert(at, " " * draw(st.integers(0, 6)) + f"{draw(_keys)}: {draw(_scalars)}")
        elif what == 4:
            lines[at] = " " * draw(st.integers(0, 3)) + lines[at]
        elif what == 5:
            cut = draw(st.integers(0, len(lines[at])))
            lines[at] = lines[at][:cut] + draw(st.text(max_size=3)) + lines[at][cut:]
        else:
            lines = lines[: at + 1]
        if not lines:
            break
    return "\n".join(lines) + draw(st.sampled_from(["\n", ""]))


_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(LINES),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(_keys | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


def _loaded(data: bytes) -> Policy | None:
    try:
        return load_policy("x", data)
    except PolicyError as error:
        problems = error.problems
    assert problems
    for problem in problems:
        assert problem.message
        assert problem.line >= 1 and problem.column >= 1, problem
        assert problem.line <= data.count(b"\n") + 2, problem
    return None


@given(edited())
@budget(120)
def test_an_edited_policy_is_a_policy_or_problems_with_places(text: str) -> None:
    """And what it allows is written in it: the host, word for word, under `hosts`."""
    policy = _loaded(text.encode("utf-8", "surrogatepass"))
    if policy is None:
        return
    event("loaded")
    written = _rules(text)
    assert [rule.name for rule in policy.rules] == [rule["name"] for rule in written]
    _denies_what_is_not_written(policy, written)


@given(_data)
@budget(60)
def test_any_data_is_a_policy_or_problems_with_places(data: object) -> None:
    """Well-formed YAML of the wrong form."""
    out = io.StringIO()
    YAML(typ="safe", pure=True).dump(data, out)
    assert _loaded(out.getvalue().encode("utf-8", "surrogatepass")) is None


@given(st.binary(max_size=200))
@budget(60)
def test_any_bytes_are_problems_with_places(data: bytes) -> None:
    """No file says anything by accident."""
    policy = _loaded(data)
    assert policy is None or not policy.rules


def _rules(text: str) -> list[dict[str, Any]]:
    found: Any = YAML(typ="safe", pure=True).load(text)
    return list(found.get("rules") or [])


def _denies_what_is_not_written(policy: Policy, written: list[dict[str, Any]]) -> None:
    names = {str(host).lower() for rule in written for host in rule["hosts"]}
    probes = {
        "evil.example",
        "example.org",
        "org",
        "xapi.example.org",
        "api.example.org.evil.example",
        "127.0.0.1",
    }
    for host in probes | {name.removeprefix("*.") for name in names}:
        by_name = host in names or any(name[:2] == "*." and host.endswith(name[1:]) for name in names)
        for port in (80, 443, 22, 8200):
            for method in ("GET", "DELETE"):
                head = RequestHead(method, "/v1/x", ())
                found = match(policy, Destination("https", host, port), head)
                if isinstance(found, Rule):
                    (rule,) = [each for each in written if each["name"] == found.name]
                    assert by_name and method in rule["methods"] and port in rule.get("ports", [443])
            if not by_name:
                assert host_allowed(policy, host, port, tls=True) is not None
