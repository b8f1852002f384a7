"""What the linter finds by asking which rule decides which requests."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.policy import HostPattern, PathPattern, Policy, Rule, match
from coatcheck.policy import load_policy
from coatcheck.policy.file.codes import Code
from coatcheck.policy.file.problem import Location
from coatcheck.policy.lint.requests import lint_requests
from tests.policy.diff.test_cells import UNHURRIED

KEYS = """\
credentials:
  key:
    secret: vault:a/b#c
    hosts: [api.example.org, "*.api.example.org"]
    inject: {header: Authorization}
  other:
    secret: vault:a/d#c
    hosts: [api.example.org]
    inject:
      - {header: X-Other}
      - {header: Authorization}
    methods: [GET]
    paths: [/v1/**]
"""


def found(*rules: str, credentials: str = KEYS) -> list[tuple[str, Location]]:
    """Code and place of each finding about `rules`, flow mappings. One more uses what no other uses."""
    lines = [f"  - {{name: r{index}, {rule}}}" for index, rule in enumerate(rules)]
    last = "name: last, hosts: [api.example.org], ports: [9], methods: [GET], paths: [/v1/**]"
    used = f"  - {{{last}, credentials: [key, other]}}"
    text = "\n".join(["version: 1", "owner: x", credentials + "rules:", *lines, used]) + "\n"
    policy = load_policy("x", text.encode())
    return [(each.code, each.location) for each in lint_requests(policy) if each.location[1] != len(rules)]


API = "hosts: [api.example.org], methods: [GET]"


def test_rules_that_share_the_work_are_clean() -> None:
    """A narrow rule before a broad one is what file order is for."""
    assert found(f"{API}, paths: [/a], credentials: [key]", f"{API}, paths: [/b]") == []
    assert (
        found("hosts: [other.example], methods: [GET], paths: [/a]", "hosts: [other.example], methods: [GET]")
        == []
    )


def test_a_rule_that_several_others_hide_together_is_found() -> None:
    """None of them does it alone, which is why nobody saw it."""
    hidden = found(
        "hosts: [b.example], methods: [GET], paths: [/a/**]",
        "hosts: [b.example], methods: [POST]",
        "hosts: [b.example], methods: [GET, POST], paths: [/a/*]",
    )
    assert hidden == [(Code.RULE_NEVER_REACHED, ("rules", 2, "name"))]


def test_what_a_rule_refuses_although_it_seems_to_allow_it_is_found() -> None:
    """Without any credential that counts, every request is asked for a handle in vain."""
    hosts = "hosts: [api.example.org, www.example.org], methods: [GET], credentials: [key]"
    assert found(hosts) == [(Code.ALWAYS_REFUSED, ("rules", 0, "hosts", 1))]
    paths = f"{API}, paths: [/v1/models, /v2/models], credentials: [other]"
    assert found(paths) == [(Code.ALWAYS_REFUSED, ("rules", 0, "paths", 1))]
    methods = "hosts: [api.example.org], methods: [GET, HEAD], paths: [/v1/**], credentials: [other]"
    assert found(methods) == [(Code.ALWAYS_REFUSED, ("rules", 0, "methods"))]
    everything = f"{API}, paths: [/v2/**], credentials: [other]"
    assert found(everything) == [(Code.ALWAYS_REFUSED, ("rules", 0, "credentials"))]


def test_a_credential_that_a_rule_lists_in_vain_is_found() -> None:
    """The rule's own paths keep it out."""
    in_vain = found(f"{API}, paths: [/v2/**], credentials: [key, other]")
    assert in_vain == [(Code.CREDENTIAL_IN_VAIN, ("rules", 0, "credentials", 1))]
    assert found(f"{API}, credentials: [key, other]") == []


def test_two_credentials_that_could_claim_one_place_are_found() -> None:
    """One comes by itself; the other's handle may stand at the same place by `also`."""
    shy = KEYS.replace(
        "inject: {header: Authorization}\n", "inject: {header: Authorization}\n    handle: optional\n"
    )
    both = f"{API}, paths: [/v1/**], credentials: [key, other]"
    assert found(both, credentials=shy) == [(Code.CREDENTIALS_SHARE_PLACE, ("rules", 0, "credentials", 1))]
    assert found(both) == []
    lower = shy.replace("- {header: Authorization}", "- {header: authorization}")
    assert found(both, credentials=lower) == found(both, credentials=shy), "a header's name has no case"
    for elsewhere in ("path: {prefix: bot}", "body: {field: token}"):
        alone = shy.replace("header: X-Other", elsewhere).replace("      - {header: Authorization}\n", "")
        assert found(both, credentials=alone) == [], "a segment, or a field, is no header"
    apart = shy.replace("- {header: Authorization}", "- {query: k}")
    assert found(both, credentials=apart) == []


GUARDED = f"{API}, paths: [/repos/**], credentials: [key]"


def test_a_credential_s_host_that_another_rule_opens_more_widely_is_found() -> None:
    """An attacker's own key goes there without ours."""
    wider = [(Code.HOST_OPENED_WIDER, ("rules", 1, "hosts", 0))]
    assert found(GUARDED, API) == wider
    assert found(GUARDED, 'hosts: ["*.example.org"], methods: [GET]') == wider
    assert found(GUARDED, "hosts: [api.example.org], methods: [GET, POST], paths: [/repos/**]") == wider
    tunnel = "hosts: [api.example.org], ports: [8443], tunnel: true, max_request: 1MiB"
    assert found(GUARDED, tunnel) == wider


def test_another_method_on_every_path_is_wider_than_a_rule_that_has_every_path() -> None:
    """The same methods, on another port, are not."""
    alone = KEYS[: KEYS.index("  other:")]
    for last, wider in (("methods: [POST]", True), ("methods: [GET], ports: [8443]", False)):
        rules = f"[{{name: r, {API}, credentials: [key]}}, {{name: s, hosts: [api.example.org], {last}}}]"
        policy = load_policy("x", f"version: 1\nowner: x\n{alone}rules: {rules}\n".encode())
        assert (Code.HOST_OPENED_WIDER in [each.code for each in lint_requests(policy)]) == wider


def test_a_host_is_said_as_it_is_written() -> None:
    """Not as one of the names that a wildcard stands for."""
    text = KEYS.replace("[api.example.org, ", "[") + "rules:\n"
    rules = 'hosts: ["*.api.example.org"], methods: [GET]'
    text += f"  - {{name: r, {rules}, paths: [/a], credentials: [key]}}\n  - {{name: s, {rules}}}\n"
    text += "  - {name: t, hosts: [api.example.org], methods: [GET], credentials: [other]}\n"
    (said,) = [
        each.message
        for each in lint_requests(load_policy("x", b"version: 1\nowner: x\n" + text.encode()))
        if each.code == Code.HOST_OPENED_WIDER
    ]
    assert said == '"r" keeps *.api.example.org for key, and "s" opens it more widely'


def test_another_rule_that_is_no_wider_passes() -> None:
    """Other paths, other hosts, other methods of the same paths: each was written on purpose."""
    assert found(GUARDED, f"{API}, paths: [/meta]") == []
    assert found(GUARDED, "hosts: [www.example.org], methods: [GET, POST]") == []
    assert found(GUARDED, "hosts: [api.example.org], methods: [HEAD], paths: [/repos/**]") == []
    assert found(GUARDED, f"{API}, credentials: [key]") == []


SEGMENTS = st.sampled_from(["a", "b", "*"])
PATHS = st.builds(PathPattern, st.lists(SEGMENTS, min_size=1, max_size=2).map(tuple), st.booleans())
NAMES = st.builds(HostPattern, st.sampled_from(["x", "a.x", "b.a.x"]), st.booleans())
RULES = st.builds(
    Rule,
    name=st.just(""),
    hosts=st.lists(NAMES, min_size=1, max_size=2).map(tuple),
    methods=st.sets(st.sampled_from(["GET", "PUT"]), min_size=1).map(frozenset),
    paths=st.lists(PATHS, max_size=2).map(tuple),
)  # fmt: skip
HOSTS = ("x", "a.x", "c.x", "b.a.x", "c.a.x", "c.b.a.x")
TARGETS = [
    *("/" + "/".join(parts) for length in (1, 2, 3) for parts in product("abc", repeat=length)),
    *(
        "/" + "".join(f"{part}/" for part in parts)
        for length in (0, 1, 2)
        for parts in product("abc", repeat=length)
    ),
    "/a;b",
]


@UNHURRIED
@given(st.lists(RULES, min_size=1, max_size=4))
def test_a_rule_is_called_unreachable_exactly_when_no_request_reaches_it(rules: list[Rule]) -> None:
    """Against every request of a universe in which each pattern has members of its own."""
    named = tuple(Rule(f"r{index}", rule.hosts, rule.methods, rule.paths) for index, rule in enumerate(rules))
    policy = Policy("p", "o", "0", rules=named)
    decided = set()
    for host in HOSTS:
        for method in ("GET", "PUT"):
            for target in TARGETS:
                found = match(policy, Destination("https", host, 443), RequestHead(method, target, ()))
                if isinstance(found, Rule):
                    decided.add(found.name)
    unreachable = {named[int(each.location[1])].name for each in lint_requests(policy)}
    assert unreachable == {rule.name for rule in named} - decided
