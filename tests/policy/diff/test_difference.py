"""A comparison says all that changes and nothing else: against brute force, and as a reviewer reads it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from coatcheck.decision.decide import DecisionContext, decide
from coatcheck.decision.handle import Claims
from coatcheck.decision.message import Destination, Origin, OriginClass, Peer, RequestHead
from coatcheck.decision.path import spellings
from coatcheck.decision.policy import (
    Credential,
    HostPattern,
    PathPattern,
    Policy,
    Rule,
    SecretRef,
    tunnel_rule,
)
from coatcheck.decision.session import Isolation, Now, Session
from coatcheck.decision.verdict import Inject, Pass
from coatcheck.injectors.header import HeaderInjection
from coatcheck.policy import load_policy
from coatcheck.policy.diff.change import Change, Direction, Subject
from coatcheck.policy.diff.difference import compare
from tests.policy.diff.test_cells import UNHURRIED

# --- a universe in which every pattern below has members of its own, and there are members of none ---------

HOSTS = ("x", "a.x", "c.x", "b.a.x", "c.a.x", "y")
SEGMENTS = ("a", "b", "c")
PATHS = (
    *("/" + "/".join(parts) for length in (1, 2, 3) for parts in product(SEGMENTS, repeat=length)),
    *(
        "/" + "".join(f"{part}/" for part in parts)
        for length in (0, 1)
        for parts in product(SEGMENTS, repeat=length)
    ),
    "/a//b",
    "/c;b",
)
DOORS = (("https", 443), ("https", 8443), ("http", 443), ("http", 80))
SESSIONS = (
    (OriginClass.SOCKET, Isolation.HARDWARE),
    (OriginClass.SOCKET, Isolation.NONE),
    (OriginClass.BEARER, Isolation.EMULATED),
)

hosts = st.lists(
    st.builds(HostPattern, st.sampled_from(["x", "a.x", "b.a.x"]), st.booleans()), min_size=1, max_size=2
).map(tuple)
patterns = st.builds(
    PathPattern, st.lists(st.sampled_from(["a", "b", "*"]), max_size=2).map(tuple), st.booleans()
).filter(lambda found: bool(found.segments) or found.prefix)
paths = st.lists(patterns, max_size=2).map(tuple)
credentials = st.builds(
    Credential,
    name=st.just(""),
    secret=st.just(SecretRef("vault", "a", "b", "c")),
    hosts=hosts,
    inject=st.just(HeaderInjection("x-key")),
    methods=st.sampled_from([frozenset(), frozenset({"GET"})]),
    paths=paths,
    handle_required=st.booleans(),
    origins=st.sampled_from([frozenset({OriginClass.SOCKET}), frozenset(OriginClass)]),
    isolation=st.sampled_from([Isolation.NONE, Isolation.EMULATED]),
    plain_http=st.booleans(),
)
rules = st.builds(
    Rule,
    name=st.just(""),
    hosts=hosts,
    methods=st.sampled_from([frozenset({"GET"}), frozenset({"GET", "PUT"})]),
    paths=paths,
    ports=st.sampled_from([frozenset({443}), frozenset({80, 443}), frozenset({8443})]),
    credentials=st.sampled_from([(), (), ("one",), ("two",), ("one", "two")]),
    plain_http=st.booleans(),
    websocket=st.booleans(),
)
tunnels = st.builds(
    Rule,
    name=st.just(""),
    hosts=hosts,
    methods=st.just(frozenset()),
    paths=st.just(()),
    ports=st.sampled_from([frozenset({443}), frozenset({8443})]),
    tunnel=st.just(True),
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Rules, now and then a tunnel, and two credentials."""
    listed = draw(st.lists(rules | rules | rules | tunnels, max_size=3))
    # Two that need no handle never meet on one rule: `review` refuses such a file.
    one, two = (
        draw(credentials),
        replace(draw(credentials), handle_required=True, inject=HeaderInjection("x-2")),
    )
    return Policy(
        "p",
        "o",
        "0",
        {"one": replace(one, name="one"), "two": replace(two, name="two")},
        tuple(replace(rule, name=f"r{index}") for index, rule in enumerate(listed)),
    )


@dataclass(frozen=True, slots=True)
class Concrete:
    """One request of one session."""

    scheme: str
    port: int
    host: str
    method: str
    websocket: bool
    path: str
    origin: OriginClass
    isolation: Isolation


def universe(host: str) -> Iterator[Concrete]:
    for (scheme, port), method, websocket, path, (origin, isolation) in product(
        DOORS, ("GET", "PUT"), (False, True), PATHS, SESSIONS
    ):
        yield Concrete(scheme, port, host, method, websocket, path, origin, isolation)


HANDLES = {"one": "cch_eyJ1", "two": "cch_eyJ2"}


def leaves(policy: Policy, request: Concrete) -> set[tuple[Subject, str]]:
    """By the daemon's own decision: with which handle shown, or with none, does it leave, and how."""
    session = Session(
        "s", "t", "u", "p", Origin(request.origin, "o"), frozenset(policy.credentials), request.isolation,
        1, 0.0, 9.0, 9.0, 9.0,
    )  # fmt: skip
    by_text = {text: Claims("s", name, 1, 0, 9, "j") for name, text in HANDLES.items()}
    world = DecisionContext(
        Now(1.0, 1.0), {session.origin: session}, {"p": policy}, by_text.__getitem__, (), lambda _: False
    )
    destination = Destination(request.scheme, request.host, request.port)
    found = set()
    for shown in (None, "one", "two"):
        headers = [("upgrade", "websocket")] if request.websocket else []
        if shown:
            headers.append(("x-key" if shown == "one" else "x-2", HANDLES[shown]))
        head = RequestHead(request.method, request.path, tuple(headers))
        verdict = decide(Peer("l", (session.origin,)), destination, head, world)
        if isinstance(verdict, Pass) and not shown:
            found.add((Subject.BARE, ""))
        elif isinstance(verdict, Inject):
            (injection,) = verdict.injections
            found.add((Subject.HANDLE if shown else Subject.UNASKED, injection.credential.name))
    return found


def says(changes: list[Change], direction: Direction, way: tuple[Subject, str], request: Concrete) -> bool:
    """Whether the comparison, as it is printed, holds this request."""
    return any(
        reach.contains(
            request.scheme, request.host, request.port, request.method, request.websocket, request.path
        )
        for change in changes
        if (change.direction, change.subject, change.credential) == (direction, *way)
        and request.origin in change.sessions.origins
        and request.isolation in change.sessions.isolations
        for reach in change.reaches
    )


def written_otherwise(path: str, *policies: Policy) -> bool:
    """Whether `path` is a spelling that servers take for what a pattern matches, and the pattern does not
    match it as it stands. A comparison says what rules mean for requests as they are written
    (`policy.diff.difference`); that spellings never let more through is the claim of
    `tests/decision/test_request_readings.py`."""
    patterns = [pattern for policy in policies for rule in policy.rules for pattern in rule.paths]
    patterns += [p for policy in policies for key in policy.credentials.values() for p in key.paths]
    return any(
        not pattern.matches(path) and any(map(pattern.leniently.matches_segments, spellings(path)))
        for pattern in patterns
    )


WAYS = [(Subject.BARE, ""), *product((Subject.HANDLE, Subject.UNASKED), ("one", "two"))]


@settings(UNHURRIED, max_examples=30)
@given(policies(), policies(), st.sampled_from(HOSTS), st.randoms(use_true_random=False))
def test_nothing_is_missed_and_nothing_invented(old: Policy, new: Policy, host: str, chance: Random) -> None:
    """Every request of a small universe, both ways: what one policy lets out and the other does not is said,
    in the right direction, and nothing else is."""
    changes = compare("p", old, new)
    plainly = [each for each in universe(host) if not written_otherwise(each.path, old, new)]
    for request in chance.sample(plainly, min(250, len(plainly))):
        before, after = leaves(old, request), leaves(new, request)
        for way in WAYS:
            gained, lost = way in after - before, way in before - after
            assert says(changes, Direction.WIDENS, way, request) == gained, (request, way)
            assert says(changes, Direction.NARROWS, way, request) == lost, (request, way)


@settings(UNHURRIED, max_examples=50)
@given(policies(), policies())
def test_a_tunnel_is_said_exactly_where_one_is_opened_or_closed(old: Policy, new: Policy) -> None:
    """On every port of every host of the universe."""
    changes = [change for change in compare("p", old, new) if change.subject is Subject.TUNNEL]
    for host, port in product(HOSTS, (80, 443, 8443)):
        before = tunnel_rule(old, host, port) is not None
        after = tunnel_rule(new, host, port) is not None
        for direction, expected in (
            (Direction.WIDENS, after and not before),
            (Direction.NARROWS, before and not after),
        ):
            said = any(
                ("https", port) in reach.doors and any(found.contains(host) for found in reach.hosts)
                for change in changes
                if change.direction is direction
                for reach in change.reaches
            )
            assert said == expected, (host, port, direction)


@settings(UNHURRIED, max_examples=50)
@given(policies(), policies())
def test_a_policy_does_not_differ_from_itself_and_backwards_is_the_opposite(old: Policy, new: Policy) -> None:
    """What widens one way narrows the other, request by request and term by term."""
    assert compare("p", old, old) == []

    def said(changes: list[Change], direction: Direction) -> set[object]:
        return {
            (
                change.subject,
                change.credential,
                change.sessions,
                frozenset(change.reaches),
                change.before or change.after,
            )
            for change in changes
            if change.direction is direction and change.subject is not Subject.CREDENTIAL
        }

    there, back = compare("p", old, new), compare("p", new, old)
    assert said(there, Direction.WIDENS) == said(back, Direction.NARROWS)
    assert said(there, Direction.NARROWS) == said(back, Direction.WIDENS)


# --- as a reviewer reads it -------------------------------------------------------------------------------

BASE = """\
version: 1
owner: security
credentials:
  github:
    secret: vault:secret/github#token
    hosts: [api.github.com]
    inject: {header: Authorization, value: "Bearer {secret}"}
rules:
  - name: api
    hosts: [api.github.com]
    methods: [GET]
    paths: [/repos/**]
    credentials: [github]
    limits: {requests: 60/minute}
"""


def said(*edits: tuple[str, str], base: str = BASE) -> list[str]:
    """Direction and text of each change after `edits`."""
    text = base
    for was, is_ in edits:
        assert was in text
        text = text.replace(was, is_)
    old, new = load_policy("web", base.encode()), load_policy("web", text.encode())
    return [f"{change.direction}: {change.text}" for change in compare("web", old, new)]


def test_more_hosts_for_a_credential() -> None:
    """The sentence that a reviewer waits for."""
    more = ("hosts: [api.github.com]", "hosts: [api.github.com, gist.github.com, uploads.github.com]")
    assert said(more) == ["widens: sessions of policy `web` may now send credential `github` to 2 more hosts"]
    below = ("hosts: [api.github.com]", 'hosts: [api.github.com, "*.github.com"]')
    assert said(below) == [
        "widens: sessions of policy `web` may now send credential `github` to names below 1 more domain"
    ]
    covered = ("hosts: [api.github.com]", 'hosts: [api.github.com, "*.b.example", a.b.example, c.example]')
    (both,) = said(covered)
    assert both.endswith("credential `github` to 1 more host and names below 1 more domain")


def test_what_reads_differently_and_means_the_same_is_no_change() -> None:
    """Names, order, comments, a rule cut along what it lists, a default written out."""
    assert said(("owner: security", "# moved\nowner: security"), ("GET]", "GET] # read")) == []
    assert said(("paths: [/repos/**]", "paths: [/repos/**, /repos/x]")) == []
    assert said(("    credentials: [github]", "    ports: [443]\n    credentials: [github]")) == []
    assert (
        said(("limits: {requests: 60/minute}", "limits: {requests: 60/minute, burst: 60, per: session}"))
        == []
    )


def test_more_requests_to_a_host_that_is_known() -> None:
    """Another method on another path; and fewer the other way."""
    assert said(("methods: [GET]", "methods: [GET, POST]")) == [
        "widens: sessions of policy `web` may now send credential `github` in more requests to 1 host"
    ]
    assert said(("paths: [/repos/**]", "paths: [/repos/*/*]")) == [
        "narrows: sessions of policy `web` may send credential `github` in fewer requests to 1 host"
    ]


def test_other_kinds_of_sessions() -> None:
    """The same requests, by sessions that could not before."""
    lax = ("    inject:", "    origins: [socket, mtls, token, address, bearer]\n    inject:")
    assert said(lax) == [
        "widens: sessions of policy `web` proven by bearer may now send credential `github` to 1 host"
    ]
    strict = ("    inject:", "    isolation: hardware\n    inject:")
    (narrowed,) = said(strict)
    assert narrowed == (
        "narrows: sessions of policy `web` proven by socket, mtls, token or address and with isolation "
        "emulated, gvisor, namespace or none may no longer send credential `github` to 1 host"
    )


def test_a_credential_that_no_longer_needs_its_handle() -> None:
    """Every process in the sandbox has it then."""
    (widened,) = said(("    inject:", "    handle: optional\n    inject:"))
    assert widened == (
        "widens: sessions of policy `web` may now send credential `github` without showing its handle "
        "to 1 host"
    )


def test_another_secret_under_the_same_name_widens() -> None:
    """Nothing else of the file changes, and a database's password goes to a code host."""
    (widened,) = said(("vault:secret/github#token", "vault:secret/db#password"))
    assert widened == (
        "widens: credential `github`: the secret from `vault:secret/github#token` "
        "to `vault:secret/db#password`"
    )


def test_limits_that_rise_widen() -> None:
    """By rate or burst, by who shares them, by being counted twice."""
    assert said(("60/minute", "61/minute")) == [
        "widens: rule `api`: requests of one session from `60/minute` to `61/minute`"
    ]
    assert said(("{requests: 60/minute}", "{requests: 60/hour, burst: 600}")) == [
        "widens: rule `api`: requests of one session from `60/minute` to `60/hour (burst 600)`",
        "narrows: rule `api`: requests of one session from `60/minute` to `60/hour (burst 600)`",
    ]
    assert said(("60/minute}", "60/minute, per: tenant}")) == [
        "widens: rule `api`: requests of one session from `60/minute` to `no limit`",
        "narrows: rule `api`: requests of one tenant from `no limit` to `60/minute`",
    ]
    rule = BASE[BASE.index("  - name: api") :]
    halves = rule.replace("/repos/**", "/repos/a/**").replace("name: api", "name: half") + rule
    assert said((rule, halves)) == [
        "widens: rule `api` is now counted apart, by `api`, `half`: each of them has limits of its own"
    ]


def test_a_policy_that_comes_or_goes() -> None:
    """All of it widens, or narrows."""
    policy = load_policy("web", BASE.encode())
    new, gone = compare("web", None, policy), compare("web", policy, None)
    assert {change.direction for change in new} == {Direction.WIDENS} and len(new) == 2
    assert {change.direction for change in gone} == {Direction.NARROWS} and len(gone) == 2
    assert compare("web", None, None) == []


def test_who_answers_and_what_sandboxes_may_do_with_files() -> None:
    """The owner is no permission; a place that may be written is."""
    assert said(("owner: security", "owner: web")) == [
        "changes: policy `web`: the owner from `security` to `web`"
    ]
    files = BASE + "filesystem: {allow_write: [/home/agent/a], deny_read: [/etc/shadow]}\n"
    assert said(("[/home/agent/a]", "[/home/agent]"), ("[/etc/shadow]", "[/etc]"), base=files) == [
        "widens: policy `web`: a place that may be written: `/home/agent` added",
        "narrows: policy `web`: a place that cannot be read: `/etc` added",
    ]
