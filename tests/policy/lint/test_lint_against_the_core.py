"""What the linter calls refused or in vain is exactly what the core never lets through."""

from collections import defaultdict
from dataclasses import replace
from itertools import product

from hypothesis import given, settings

from coatcheck.decision.message import Destination, OriginClass, RequestHead
from coatcheck.decision.policy import Policy, Rule, match
from coatcheck.decision.session import Isolation
from coatcheck.policy.diff.change import Subject
from coatcheck.policy.file.codes import Code
from coatcheck.policy.file.problem import Location
from coatcheck.policy.lint.requests import lint_requests
from tests.policy.diff.test_cells import UNHURRIED
from tests.policy.diff.test_difference import HOSTS, Concrete, leaves, policies, written_otherwise

DOORS = tuple(product(("https", "http"), (80, 443, 8443)))
PATHS = (
    *("/", "/a", "/b", "/c", "/a/", "/b/", "/c/", "/a//b", "/c;b"),
    *(f"/{one}/{two}" for one, two in product("abc", repeat=2)),
    *("/a/a/a", "/a/b/c", "/b/b/b", "/c/b/c", "/c/c/c"),
)

type Ways = set[tuple[Subject, str]]


def decided(policy: Policy) -> dict[str, list[tuple[Concrete, Ways]]]:
    """By rule: each request of a small universe that it decides, and the ways in which that one may leave."""
    found = defaultdict(list)
    for host, door, method, websocket, path in product(
        (*HOSTS, "c.b.a.x"), DOORS, ("GET", "PUT"), (False, True), PATHS
    ):
        if written_otherwise(path, policy):
            continue
        headers = (("upgrade", "websocket"),) if websocket else ()
        rule = match(policy, Destination(door[0], host, door[1]), RequestHead(method, path, headers))
        if isinstance(rule, Rule):
            asked = Concrete(*door, host, method, websocket, path, OriginClass.SOCKET, Isolation.HARDWARE)
            found[rule.name].append((asked, leaves(policy, asked)))
    return found


def expected(policy: Policy) -> set[tuple[Code, Location]]:
    requests, said = decided(policy), set[tuple[Code, Location]]()
    for at, rule in enumerate(policy.rules):
        own = requests.get(rule.name, [])
        if not own or not rule.credentials:
            continue
        if not any(ways for _, ways in own):
            said.add((Code.ALWAYS_REFUSED, ("rules", at, "credentials")))
            continue
        parts: list[tuple[Location, list[Ways]]] = [
            *(
                (("hosts", index), [ways for asked, ways in own if host.matches(asked.host)])
                for index, host in enumerate(rule.hosts)
            ),
            *(
                (("paths", index), [ways for asked, ways in own if path.matches(asked.path)])
                for index, path in enumerate(rule.paths)
            ),
            *(
                (("methods",), [ways for asked, ways in own if asked.method == method])
                for method in rule.methods
            ),
        ]
        for where, here in parts:
            if here and not any(here):
                said.add((Code.ALWAYS_REFUSED, ("rules", at, *where)))
        shown = {name for _, ways in own for kind, name in ways if kind is Subject.HANDLE}
        for index, name in enumerate(rule.credentials):
            if name not in shown:
                said.add((Code.CREDENTIAL_IN_VAIN, ("rules", at, "credentials", index)))
    return said


@settings(UNHURRIED, max_examples=15)
@given(policies())
def test_what_is_called_refused_or_in_vain_never_leaves_and_all_else_does(policy: Policy) -> None:
    """For sessions of which nothing more is asked: who may use a credential is not the linter's question."""
    anyone = {
        name: replace(key, origins=frozenset(OriginClass), isolation=Isolation.NONE)
        for name, key in policy.credentials.items()
    }
    policy = replace(policy, credentials=anyone)
    said = {(Code(each.code), each.location) for each in lint_requests(policy)}
    judged = {Code.ALWAYS_REFUSED, Code.CREDENTIAL_IN_VAIN}
    assert {each for each in said if each[0] in judged} == expected(policy)
