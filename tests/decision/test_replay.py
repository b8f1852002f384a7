"""What another policy would have said, held against what it does say."""

from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.comparison import Judged
from coatcheck.decision.decide import DecisionContext, Identified, decide
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.handle import Claims
from coatcheck.decision.message import Destination, Origin, OriginClass, Peer, RequestHead
from coatcheck.decision.observation import Observation
from coatcheck.decision.policy import Credential, HostPattern, PathPattern, Policy, Rule, SecretRef
from coatcheck.decision.replay import (
    AFTERWARDS,
    BY_HANDLE,
    BY_HEADERS,
    BY_MATCH,
    NOT_BY_POLICY,
    Change,
    Question,
    replay,
)
from coatcheck.decision.session import Isolation, Now, Session
from coatcheck.decision.verdict import Inject, Pass
from coatcheck.injectors.header import HeaderInjection
from coatcheck.policy import load_policy

NAMES = ("one", "two")
HOSTS = ("a.example.org", "b.example.org")
ORIGIN = Origin(OriginClass.SOCKET, "s-1")
HANDLES = {name: f"cch_eyJhbGciOiJFZERTQSJ9.eyJzIjo{name}.{'a' * 86}" for name in NAMES}
"""In the form by which they are found in a request."""

patterns = st.sampled_from([HostPattern(HOSTS[0]), HostPattern(HOSTS[1]), HostPattern("example.org", True)])
hosts = st.lists(patterns, min_size=1, max_size=2, unique=True).map(tuple)
methods = st.sets(st.sampled_from(["GET", "POST"]), min_size=1).map(frozenset)
paths = st.lists(
    st.sampled_from([PathPattern(("x",)), PathPattern(("x",), True), PathPattern(("*", "y"))]), max_size=2
).map(tuple)
rules = st.builds(
    Rule,
    name=st.sampled_from(["r1", "r2", "r3"]),
    hosts=hosts,
    methods=methods,
    paths=paths,
    ports=st.sampled_from([frozenset({443}), frozenset({443, 8443})]),
    credentials=st.lists(st.sampled_from(NAMES), max_size=2, unique=True).map(tuple),
    plain_http=st.just(False),
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Small ones, about the same few hosts, so that two of them often differ in what is asked."""
    credentials = {
        name: Credential(
            name,
            SecretRef("memory", "secret", name, "key"),
            draw(hosts),
            HeaderInjection("authorization"),
            methods=draw(st.sampled_from([frozenset[str](), frozenset({"GET"})])),
            handle_required=draw(st.sampled_from([True, True, True, False])),
            origins=draw(st.sampled_from([frozenset(OriginClass), frozenset({OriginClass.MTLS})])),
            isolation=draw(st.sampled_from([Isolation.NONE, Isolation.NONE, Isolation.HARDWARE])),
        )
        for name in NAMES
    }
    made = draw(st.lists(rules, max_size=3, unique_by=lambda rule: rule.name))
    return Policy("default", "tests", draw(st.uuids()).hex, MappingProxyType(credentials), tuple(made))


def judged(policy: Policy, destination: Destination, head: RequestHead, isolation: Isolation) -> Judged:
    """The verdict of the core itself."""
    session = Session(
        "s-1", "acme", "agent", "default", ORIGIN, frozenset(NAMES), isolation, 0, 0.0, 9e9, 9e9, 9e9
    )

    def claims_of(text: str) -> Claims | Deny:
        name = next(name for name, handle in HANDLES.items() if handle == text)
        return Claims("s-1", name, 0, 0, 9_000_000_000, "j")

    world = DecisionContext(
        now=Now(1.0, 1.0),
        by_origin={ORIGIN: session},
        by_id={session.id: session},
        policies={"default": policy},
        claims_of=claims_of,
        references=(),
        known=lambda text: False,
    )
    return decide(Peer("own", (ORIGIN,)), destination, head, world)


def as_recorded(verdict: Judged, destination: Destination, head: RequestHead) -> Question:
    """What the audit log keeps of it."""
    assert isinstance(verdict, Identified | Pass | Inject)
    denial = verdict.denial if isinstance(verdict, Identified) else None
    rule = denial.rule or "" if denial else "" if isinstance(verdict, Identified) else verdict.rule.name
    credentials = tuple(i.credential.name for i in verdict.injections) if isinstance(verdict, Inject) else ()
    return Question(
        denial.reason if denial else None,
        denial.detail if denial else "",
        rule,
        credentials,
        head.method,
        destination,
        head.path,
        "socket",
        whole=True,
    )


@given(
    old=policies(),
    new=policies(),
    host=st.sampled_from([*HOSTS, "c.example.net"]),
    port=st.sampled_from([443, 8443]),
    method=st.sampled_from(["GET", "POST"]),
    path=st.sampled_from(["/x", "/x/y", "/z", "/z/y", "/x//y"]),
    handle=st.sampled_from([None, *NAMES]),
    isolation=st.sampled_from([Isolation.NONE, Isolation.HARDWARE]),
)
def test_what_is_not_unknown_is_what_the_core_says(
    old: Policy,
    new: Policy,
    host: str,
    port: int,
    method: str,
    path: str,
    handle: str | None,
    isolation: Isolation,
) -> None:
    """For any two policies and any request: with what it says that it takes for granted about handles."""
    destination = Destination("https", host, port)
    shown = (("authorization", HANDLES[handle]),) if handle is not None else ()
    head = RequestHead(method, path, shown)
    before = judged(old, destination, head, isolation)
    after = judged(new, destination, head, isolation)
    if isinstance(before, Inject) and handle is None:
        return  # `handle: optional`: the record looks as if its handle had been shown
    answer = replay(new, as_recorded(before, destination, head))
    was, now = (not isinstance(each, Deny | Identified) for each in (before, after))
    match answer.change:
        case Change.UNKNOWN:
            return
        case Change.SAME | Change.RULE:
            assert was == now, (answer, before, after)
            if isinstance(before, Pass | Inject) and isinstance(after, Pass | Inject):
                assert type(before) is type(after)
                assert (before.rule.name == after.rule.name) == (answer.change is Change.SAME)
        case Change.REASON:
            assert not was and not now
        case Change.REFUSES:
            assert was and not now, (answer, before, after)
        case Change.ALLOWS:
            assert not was
            assert now or handle is not None, (answer, before, after)
        case Change.UNTOUCHED:
            raise AssertionError(f"a policy decided this: {before}")


POLICY = load_policy(
    "default",
    b"""
version: 1
owner: tests
credentials:
  form:
    secret: memory:secret/form#key
    hosts: [api.example.org]
    inject: {body: {field: token}}
rules:
  - name: opened
    hosts: [api.example.org]
    methods: [GET]
    paths: [/v1/**]
  - name: asked
    hosts: [api.example.org]
    methods: [PUT]
    ask: {wait: 1m}
  - name: forms
    hosts: [api.example.org]
    methods: [POST]
    paths: [/form]
    credentials: [form]
  - name: unopened
    hosts: [pinned.example.org]
    tunnel: true
    max_request: 1MiB
    max_response: 1MiB
""",
)
ASKED = Question(
    None, "", "opened", (), "GET", Destination("https", "api.example.org", 443), "/v1/x", "socket", whole=True
)
ELSEWHERE = Destination("https", "no.example.org", 443)
PINNED = replace(
    ASKED, method="CONNECT", path="", destination=Destination("https", "pinned.example.org", 443)
)


@pytest.mark.parametrize(
    ("asked", "change", "words"),
    [
        (ASKED, Change.SAME, "allowed, rule opened"),
        (replace(ASKED, rule="other"), Change.RULE, "allowed, rule opened"),
        (replace(ASKED, whole=False), Change.UNKNOWN, "masked or cut"),
        (replace(ASKED, reason=Reason.RATE_LIMITED), Change.SAME, "allowed, rule opened"),
        (replace(ASKED, reason=Reason.RATE_LIMITED, path="/v2"), Change.REFUSES, "path_not_allowed"),
        (replace(ASKED, reason=Reason.APPROVAL_TIMEOUT), Change.SAME, "allowed, rule opened"),
        (replace(ASKED, method="PUT"), Change.RULE, "allowed once approved, rule asked"),
        (replace(ASKED, reason=Reason.CAPACITY, rule=""), Change.UNTOUCHED, ""),
        (replace(ASKED, reason=Reason.LEASE_LAPSED), Change.UNTOUCHED, ""),
        (replace(ASKED, reason=Reason.DRAINING), Change.UNTOUCHED, ""),
        (replace(ASKED, reason=Reason.PROTOCOL_REFUSED), Change.UNKNOWN, "Upgrade"),
        (replace(ASKED, reason=Reason.HOST_NOT_ALLOWED, rule=""), Change.ALLOWS, "allowed, rule opened"),
        (replace(ASKED, method="POST", path="/form", rule="forms"), Change.UNKNOWN, "its body"),
        (replace(PINNED, rule="unopened"), Change.SAME, "unopened"),
        (replace(PINNED, reason=Reason.HOST_NOT_ALLOWED), Change.ALLOWS, "unopened"),
        (replace(PINNED, destination=ASKED.destination), Change.RULE, "request by request"),
        (replace(ASKED, reason=Reason.HANDLE_WRONG_HOST, destination=ELSEWHERE), Change.SAME, "host_not"),
        (replace(PINNED, destination=ELSEWHERE), Change.REFUSES, "host_not"),
        (replace(PINNED, destination=replace(PINNED.destination, port=8443)), Change.REFUSES, "port_not"),
        (replace(PINNED, destination=ELSEWHERE, reason=Reason.HOST_NOT_ALLOWED), Change.SAME, "host_not"),
        (replace(PINNED, destination=ELSEWHERE, reason=Reason.PORT_NOT_ALLOWED), Change.REASON, "host_not"),
    ],
)  # fmt: skip
def test_single_answers(asked: Question, change: Change, words: str) -> None:
    """Limits, tunnels, bodies, what no policy decides."""
    answer = replay(POLICY, asked)
    assert answer.change is change and words in answer.then


def test_under_a_policy_that_observes_what_only_lacks_a_rule_is_not_known() -> None:
    """It would pass until a day, and the log does not hold all that this depends on; other refusals stay."""
    observes = replace(POLICY, observe=Observation("to learn", 9e9))
    assert replay(observes, replace(ASKED, destination=ELSEWHERE)).change is Change.UNKNOWN
    assert replay(observes, replace(ASKED, path="/v1//x")).change is Change.REFUSES
    assert replay(observes, ASKED).change is Change.SAME


def test_a_policy_that_would_be_gone() -> None:
    """Refuses everything that it decided, and nothing that it did not."""
    assert replay(None, ASKED).change is Change.REFUSES
    assert replay(None, replace(ASKED, reason=Reason.POLICY_MISSING)).change is Change.SAME
    assert replay(None, replace(ASKED, reason=Reason.PATH_NOT_ALLOWED)).change is Change.REASON
    assert replay(None, replace(ASKED, reason=Reason.SESSION_EXPIRED)).change is Change.UNTOUCHED


API = Credential(
    "one",
    SecretRef("memory", "secret", "one", "key"),
    (HostPattern(HOSTS[0]),),
    HeaderInjection("authorization"),
)
CALLS = Rule(
    "r1", (HostPattern(HOSTS[0]), HostPattern(HOSTS[1])), frozenset({"GET"}), (), credentials=("one",)
)
INJECTED = replace(ASKED, rule="r1", credentials=("one",), destination=Destination("https", HOSTS[0], 443))


@pytest.mark.parametrize(
    ("credential", "rule", "host", "change"),
    [
        (API, CALLS, HOSTS[0], Change.SAME),
        (API, replace(CALLS, name="r2"), HOSTS[0], Change.RULE),
        (API, replace(CALLS, credentials=()), HOSTS[0], Change.REFUSES),
        (API, CALLS, HOSTS[1], Change.REFUSES),
        (replace(API, methods=frozenset({"POST"})), CALLS, HOSTS[0], Change.REFUSES),
        (replace(API, paths=(PathPattern(("x",)),)), CALLS, HOSTS[0], Change.REFUSES),
        (replace(API, origins=frozenset({OriginClass.MTLS})), CALLS, HOSTS[0], Change.REFUSES),
        (replace(API, isolation=Isolation.HARDWARE), CALLS, HOSTS[0], Change.UNKNOWN),
        (replace(API, name="two"), replace(CALLS, credentials=("two",)), HOSTS[0], Change.REFUSES),
    ],
)  # fmt: skip
def test_a_credential_must_still_be_given(
    credential: Credential, rule: Rule, host: str, change: Change
) -> None:
    """By the rule, at the host, with the method, on the path, over the kind of connection that it came by."""
    policy = Policy("default", "tests", "0", MappingProxyType({credential.name: credential}), (rule,))
    asked = replace(INJECTED, destination=Destination("https", host, 443))
    assert replay(policy, asked).change is change


@pytest.mark.parametrize(
    ("credential", "detail", "change"),
    [
        (API, "credential one: not in this rule", Change.UNKNOWN),
        (replace(API, methods=frozenset({"GET"})), "credential one: not in this rule", Change.UNKNOWN),
        (replace(API, methods=frozenset({"POST"})), "credential one: not in this rule", Change.SAME),
        (API, "credential two: not in this rule", Change.SAME),
        (API, "handle j", Change.UNKNOWN),
    ],
)
def test_a_handle_that_was_refused(credential: Credential, detail: str, change: Change) -> None:
    """Stays so where its credential does not belong; where it would, nobody knows where it stood."""
    policy = Policy("default", "tests", "0", MappingProxyType({"one": credential}), (CALLS,))
    asked = replace(INJECTED, reason=Reason.HANDLE_WRONG_HOST, detail=detail, credentials=(), rule="")
    assert replay(policy, asked).change is change
    for reason in (Reason.ORIGIN_CLASS_REFUSED, Reason.ISOLATION_REFUSED):  # it may have come without one
        assert replay(policy, replace(asked, reason=reason)).change is Change.UNKNOWN


def test_a_handle_that_was_refused_stays_so_under_a_rule_that_does_not_list_its_credential() -> None:
    """Though the credential itself may go there."""
    both = MappingProxyType({"one": API, "two": replace(API, name="two")})
    policy = Policy("default", "tests", "0", both, (replace(CALLS, credentials=("two",)),))
    asked = replace(INJECTED, reason=Reason.HANDLE_OUT_OF_SCOPE, credentials=(), rule="")
    for named, change in (("one", Change.SAME), ("two", Change.UNKNOWN)):
        detail = f"credential {named}: not in this rule"
        assert replay(policy, replace(asked, detail=detail)).change is change


def test_a_request_without_a_handle_under_a_rule_that_wants_one() -> None:
    """Is refused; where no handle is needed, it depends on what its session was granted."""
    asked = replace(INJECTED, credentials=())
    for credential, change in ((API, Change.REFUSES), (replace(API, handle_required=False), Change.UNKNOWN)):
        policy = Policy("default", "tests", "0", MappingProxyType({"one": credential}), (CALLS,))
        assert replay(policy, asked).change is change
        missing = replay(policy, replace(asked, reason=Reason.HANDLE_MISSING)).change
        assert missing is (Change.SAME if credential.handle_required else Change.UNKNOWN)


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_of_exactly_one_kind(reason: Reason) -> None:
    """A new one is not left to fall through: anyone who adds it says whether a policy decides it."""
    kinds = (BY_MATCH, BY_HANDLE, BY_HEADERS, AFTERWARDS, NOT_BY_POLICY)
    assert sum(reason in kind for kind in kinds) == 1
