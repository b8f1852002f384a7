"""Who, may it, is it genuine: the first Deny wins."""

from dataclasses import replace

import pytest

from coatcheck.decision.decide import (
    DecisionContext,
    Identified,
    NeedBody,
    decide,
    decide_body,
    decide_connect,
)
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.handle import Claims
from coatcheck.decision.message import (
    Destination,
    Origin,
    OriginalDestination,
    OriginClass,
    Peer,
    RequestHead,
)
from coatcheck.decision.policy import Credential, HostPattern, PathPattern, Policy, Rule, SecretRef, Shape
from coatcheck.decision.session import Isolation, Now, Session
from coatcheck.decision.synthetic import synthetic
from coatcheck.decision.verdict import Inject, Pass
from coatcheck.injectors.basic import BasicInjection
from coatcheck.injectors.body import BodyInjection
from coatcheck.injectors.header import HeaderInjection

ORIGIN = Origin(OriginClass.SOCKET, "ses_a")
PEER = Peer("ses_a", (ORIGIN,))
API = Destination("https", "api.example.org", 443)
SESSION = Session(
    id="ses_a",
    tenant="acme",
    subject="agent",
    policy="default",
    origin=ORIGIN,
    credentials=frozenset({"api", "git", "body", "free"}),
    isolation=Isolation.NONE,
    generation=1,
    opened_at=0.0,
    expires_at=1000.0,
    lease_seconds=100.0,
    lease_deadline=100.0,
)


def credential(name: str, inject: object, **changes: object) -> Credential:
    ref = SecretRef("vault", "secret", name, "key")
    return Credential(name, ref, (HostPattern("api.example.org"),), inject, **changes)  # type: ignore[arg-type]


CREDENTIALS = {
    "api": credential("api", HeaderInjection("Authorization", "Bearer {secret}")),
    "git": credential("git", BasicInjection("x-access-token", realm="git")),
    "body": credential("body", BodyInjection("token", max_bytes=1000)),
    "free": credential("free", HeaderInjection("X-Key"), handle_required=False),
}


def rule(name: str, path: str, *names: str, **changes: object) -> Rule:
    pattern = PathPattern(tuple(path.split("/")[1:]))
    hosts = (HostPattern("api.example.org"),)
    return Rule(name, hosts, frozenset({"GET", "POST"}), (pattern,), credentials=names, **changes)  # type: ignore[arg-type]


POLICY = Policy(
    "default",
    "owner",
    "hash",
    CREDENTIALS,
    (
        rule("model calls", "/v1", "api"),
        rule("git", "/git", "git"),
        rule("slack", "/slack", "body"),
        rule("metrics", "/metrics", "free"),
        rule("open", "/open"),
        Rule("pinned", (HostPattern("pinned.example.org"),), frozenset({"CONNECT"}), (), tunnel=True),
    ),
)
HANDLES = {
    f"cch_eyJ{name}": Claims(session, name, generation, 0, 900, f"jti-{name}")
    for name, session, generation in (
        ("api", "ses_a", 1),
        ("git", "ses_a", 1),
        ("body", "ses_a", 1),
        ("ungranted", "ses_a", 1),
    )
}
STOLEN = "cch_eyJstolen"
OLD = "cch_eyJold"
HANDLES[STOLEN] = Claims("ses_b", "api", 1, 0, 900, "jti-stolen")
HANDLES[OLD] = Claims("ses_a", "api", 0, 0, 900, "jti-old")


def world(session: Session = SESSION, *, at: float = 10.0) -> DecisionContext:
    return DecisionContext(
        now=Now(at, at),
        by_origin={session.origin: session},
        policies={"default": POLICY},
        claims_of=lambda text: HANDLES.get(text) or Deny(Reason.HANDLE_UNKNOWN, "not ours"),
        references=(),
        known=lambda _: False,
    )


def ask(
    path: str, *headers: tuple[str, str], session: Session = SESSION, at: float = 10.0, body: bool = False
) -> object:
    method = "POST" if body else "GET"
    return decide(PEER, API, RequestHead(method, path, headers, end_stream=not body), world(session, at=at))


def reason(verdict: object) -> Reason:
    denial = verdict.denial if isinstance(verdict, Identified) else verdict
    assert isinstance(denial, Deny)
    return denial.reason


def alarm(verdict: object) -> bool:
    return isinstance(verdict, Identified) and verdict.denial.alarm


BEARER = ("authorization", "Bearer cch_eyJapi")


def test_a_handle_in_its_place_is_injected() -> None:
    """The verdict names the session, the rule, the credential and where the handle stood."""
    verdict = ask("/v1", BEARER)
    assert isinstance(verdict, Inject)
    assert [i.credential.name for i in verdict.injections] == ["api"]
    assert verdict.injections[0].handle == "cch_eyJapi"


def test_a_rule_without_credentials_passes() -> None:
    """Allowed as it is."""
    assert isinstance(ask("/open"), Pass)


def test_nobody_is_refused_without_an_origin() -> None:
    """No evidence, no session; and it is not said whose policy would have applied."""
    verdict = decide(Peer("shared", ()), API, RequestHead("GET", "/v1", (BEARER,)), world())
    assert reason(verdict) is Reason.ORIGIN_UNKNOWN
    assert isinstance(verdict, Deny)


@pytest.mark.parametrize(
    ("changes", "at", "why"),
    [
        ({"revoked": True}, 10.0, Reason.SESSION_REVOKED),
        ({}, 100.0, Reason.LEASE_LAPSED),
        ({"lease_deadline": 5000.0}, 1000.0, Reason.SESSION_EXPIRED),
        ({"policy": "gone"}, 10.0, Reason.POLICY_MISSING),
    ],
)
def test_a_session_that_may_not_act_gets_nothing(changes: dict[str, object], at: float, why: Reason) -> None:
    """Revoked, lapsed, too old, or without a policy: refused whatever the request is."""
    session = replace(SESSION, **changes)  # type: ignore[arg-type]
    assert reason(ask("/v1", BEARER, session=session, at=at)) is why


@pytest.mark.parametrize(
    ("path", "headers", "why"),
    [
        ("/v1", (("authorization", f"Bearer {STOLEN}"),), Reason.HANDLE_STOLEN),
        ("/open", (("x-leak", STOLEN),), Reason.HANDLE_STOLEN),
        ("/v1", (("authorization", f"Bearer {OLD}"),), Reason.HANDLE_STALE),
        ("/v1", (("x-other", "cch_eyJapi"),), Reason.HANDLE_MISPLACED),
        ("/v1", (BEARER, ("x-copy", "cch_eyJapi")), Reason.HANDLE_MISPLACED),
        ("/v1", (("cookie", "a=cch_eyJapi"),), Reason.HANDLE_MISPLACED),
        ("/v1?key=cch_eyJapi", (), Reason.HANDLE_MISPLACED),
        ("/open", (BEARER,), Reason.HANDLE_WRONG_HOST),
        ("/v1", (("authorization", "Bearer cch_eyJforged"),), Reason.HANDLE_UNKNOWN),
    ],
)
def test_a_handle_that_does_not_count_is_refused(
    path: str, headers: tuple[tuple[str, str], ...], why: Reason
) -> None:
    """Stolen, stale, misplaced, elsewhere, forged: refused, whatever else the request carries."""
    assert reason(ask(path, *headers)) is why


@pytest.mark.parametrize("text", [STOLEN, "cch_eyJapi", "cch_eyJforged"])
def test_a_handle_out_of_place_is_an_alarm(text: str) -> None:
    """It is refused and told to the security team (I4)."""
    assert alarm(ask("/open", ("x-leak", text)))


def test_a_refused_request_that_carries_a_handle_is_an_alarm() -> None:
    """Somebody tried to take it where no rule goes."""
    elsewhere = Destination("https", "evil.example", 443)
    verdict = decide(PEER, elsewhere, RequestHead("GET", "/", (BEARER,)), world())
    assert reason(verdict) is Reason.HANDLE_WRONG_HOST
    assert alarm(verdict)


def test_a_refused_request_to_the_handles_own_host_is_no_alarm() -> None:
    """After a policy is tightened, every ordinary call of a client would ring."""
    verdict = ask("/v2", BEARER)
    assert reason(verdict) is Reason.PATH_NOT_ALLOWED
    assert not alarm(verdict)


def test_a_missing_handle_is_said_and_challenged() -> None:
    """Git sends what it holds only after WWW-Authenticate."""
    assert reason(ask("/v1")) is Reason.HANDLE_MISSING
    verdict = ask("/git")
    assert isinstance(verdict, Identified)
    assert verdict.denial.challenge == 'Basic realm="git"'


def test_an_optional_handle_injects_without_one() -> None:
    """`handle: optional`: the session's right is enough; without the grant it is not."""
    verdict = ask("/metrics")
    assert isinstance(verdict, Inject)
    assert verdict.injections[0].handle is None
    session = replace(SESSION, credentials=frozenset())
    assert reason(ask("/metrics", session=session)) is Reason.HANDLE_MISSING


def test_a_credential_demands_its_origin_class_and_isolation() -> None:
    """`bearer` does not stop theft, so it gets no real credential unless the policy says so."""
    bearer = Origin(OriginClass.BEARER, "digest")
    session = replace(SESSION, origin=bearer)
    peer = Peer("shared", (bearer,))
    verdict = decide(peer, API, RequestHead("GET", "/v1", (BEARER,)), world(session))
    assert reason(verdict) is Reason.ORIGIN_CLASS_REFUSED


def test_a_body_credential_asks_for_the_body_first() -> None:
    """The verdict waits for the body, up to the credential's bound; then a declared handle counts."""
    need = ask("/slack", body=True)
    assert isinstance(need, NeedBody)
    assert need.limit == 1000
    verdict = decide_body(need, b'{"token": "cch_eyJbody"}', world())
    assert isinstance(verdict, Inject)
    assert [i.handle for i in verdict.injections] == ["cch_eyJbody"]
    assert reason(decide_body(need, b"{}", world())) is Reason.HANDLE_MISSING


def test_a_stolen_handle_in_a_body_is_refused_where_it_would_be_injected() -> None:
    """In other bodies it is inert; here it would have been used."""
    need = ask("/slack", body=True)
    assert isinstance(need, NeedBody)
    handles = dict(HANDLES) | {"cch_eyJtheirs": Claims("ses_b", "body", 1, 0, 900, "j")}
    there = replace(world(), claims_of=lambda text: handles.get(text) or Deny(Reason.HANDLE_UNKNOWN))
    verdict = decide_body(need, b'{"token": "cch_eyJtheirs"}', there)
    assert reason(verdict) is Reason.HANDLE_STOLEN


def test_a_tunnel_is_opened_only_to_hosts_that_a_rule_names() -> None:
    """Before a name is resolved or a certificate minted (I6)."""
    assert isinstance(decide_connect(PEER, "api.example.org", 443, world()), Session)
    assert isinstance(decide_connect(PEER, "pinned.example.org", 443, world()), Pass)
    assert reason(decide_connect(PEER, "evil.example", 443, world())) is Reason.HOST_NOT_ALLOWED
    assert reason(decide_connect(PEER, "api.example.org", 22, world())) is Reason.PORT_NOT_ALLOWED


# --- what mutation testing found to be untested ---------------------------------------------------------


def varied(rules: tuple[Rule, ...], **changes: Credential) -> DecisionContext:
    """The world with other rules, and some credentials changed or added."""
    return replace(world(), policies={"default": Policy("default", "o", "h", CREDENTIALS | changes, rules)})


def denied(verdict: object) -> Deny:
    denial = verdict.denial if isinstance(verdict, Identified) else verdict
    assert isinstance(denial, Deny)
    return denial


@pytest.mark.parametrize(("host", "port"), [("other.example.org", 443), ("api.example.org", 8443)])
def test_a_connection_that_contradicts_itself_is_refused(host: str, port: int) -> None:
    """It was made to another name's synthetic address, or to another port (I7)."""
    made = synthetic(host)
    assert made is not None
    peer = replace(PEER, original=OriginalDestination(str(made.ipv4), port))
    for verdict in (
        decide(peer, API, RequestHead("GET", "/open", ()), world()),
        decide_connect(peer, "api.example.org", 443, world()),
    ):
        assert reason(verdict) is Reason.AUTHORITY_MISMATCH
    right = replace(PEER, original=OriginalDestination(str(synthetic("api.example.org").ipv4), 443))  # type: ignore[union-attr]
    assert isinstance(decide(right, API, RequestHead("GET", "/open", ()), world()), Pass)
    assert decide_connect(right, "api.example.org", 443, world()) == SESSION


REFERENCE = "ghp_" + "aB3" * 12


def test_an_issued_reference_is_a_handle_in_heads_and_bodies() -> None:
    """It is found by its shape and by being known, and by both only."""
    there = replace(
        world(),
        references=(Shape("ghp_", 36),),
        known=lambda text: text == REFERENCE,
        claims_of=lambda text: Claims("ses_a", "body" if text == REFERENCE else "", 1, 0, 900, "j"),
    )
    leak = RequestHead("GET", "/open", (("x-leak", REFERENCE),))
    assert reason(decide(PEER, API, leak, there)) is Reason.HANDLE_WRONG_HOST
    need = ask("/slack", body=True)
    assert isinstance(need, NeedBody)
    verdict = decide_body(need, f"token={REFERENCE}".encode(), there)
    assert isinstance(verdict, Inject) and verdict.injections[0].handle == REFERENCE


def test_a_body_may_hold_handles_that_do_not_count_before_the_one_that_does() -> None:
    """An agent's notes beside the field: the unknown ones are inert text (I4)."""
    need = ask("/slack", body=True)
    assert isinstance(need, NeedBody)
    verdict = decide_body(need, b"cch_eyJnobody cch_eyJapi cch_eyJbody", world())
    assert isinstance(verdict, Inject)


def test_only_credentials_that_stand_in_bodies_wait_for_one() -> None:
    """A request without its handle is refused at once, body or not, and told the rule."""
    assert denied(ask("/v1", body=True)) == Deny(Reason.HANDLE_MISSING, rule="model calls")
    assert denied(ask("/slack")).reason is Reason.HANDLE_MISSING
    need = ask("/slack", body=True)
    assert isinstance(need, NeedBody)
    assert decide_body(need, b"{}", world()) == Deny(Reason.HANDLE_MISSING, rule="slack")
    with_both = varied((rule("both", "/v1", "api", "body"),))
    need = decide(PEER, API, RequestHead("POST", "/v1", (BEARER,), end_stream=False), with_both)
    assert isinstance(need, NeedBody)
    assert [c.name for c in need.credentials] == ["body"] and [i.handle for i in need.injections] == [
        BEARER[1][7:]
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"methods": frozenset({"GET"})},
        {"paths": (PathPattern(("elsewhere",)),)},
        {"hosts": (HostPattern("else.example.org"),)},
    ],
)
@pytest.mark.parametrize("name", ["body", "api", "free"])
def test_a_credential_goes_nowhere_but_to_its_own_hosts_methods_and_paths(
    name: str, changes: dict[str, object]
) -> None:
    """In a body, with its handle or without one, where the rule itself would allow it."""
    narrow = replace(CREDENTIALS[name], **changes)  # type: ignore[arg-type]
    there = varied((rule("all", "/x", name),), **{name: narrow})
    shown = (BEARER,) if name == "api" else ()
    verdict = decide(PEER, API, RequestHead("POST", "/x", shown, end_stream=name != "body"), there)
    expected = Reason.HANDLE_MISSING if name == "free" else Reason.HANDLE_WRONG_HOST
    assert denied(verdict).reason in (expected, Reason.HANDLE_OUT_OF_SCOPE)
    wide = replace(
        narrow, paths=(PathPattern(("x",)),), methods=frozenset({"POST"}), hosts=CREDENTIALS[name].hosts
    )
    there = varied((rule("all", "/x", name),), **{name: wide})
    verdict = decide(PEER, API, RequestHead("POST", "/x", shown, end_stream=name != "body"), there)
    assert isinstance(verdict, NeedBody if name == "body" else Inject)


def test_the_same_credential_twice_is_an_alarm() -> None:
    """In two places where it may stand, each in its form."""
    twice = replace(CREDENTIALS["api"], other_injectors=(HeaderInjection("X-Key"),))
    head = RequestHead("GET", "/v1", (BEARER, ("x-key", "cch_eyJapi")))
    denial = denied(decide(PEER, API, head, varied((rule("r", "/v1", "api"),), api=twice)))
    assert (denial.reason, denial.alarm, denial.rule) == (Reason.HANDLE_MISPLACED, True, "r")


def test_a_misplaced_handle_is_an_alarm_under_the_rules_name() -> None:
    """Own handle, right rule, wrong place."""
    denial = denied(ask("/v1", ("x-other", "cch_eyJapi")))
    assert (denial.reason, denial.alarm, denial.rule) == (Reason.HANDLE_MISPLACED, True, "model calls")


def test_the_first_optional_credential_that_fits_is_taken() -> None:
    """Those that need a handle, were not granted or are for elsewhere are passed over."""
    elsewhere = replace(CREDENTIALS["free"], name="elsewhere", paths=(PathPattern(("y",)),))
    ungranted = replace(CREDENTIALS["free"], name="ungranted")
    there = varied(
        (rule("r", "/x", "api", "ungranted", "elsewhere", "free"),), elsewhere=elsewhere, ungranted=ungranted
    )
    there = replace(
        there, by_origin={ORIGIN: replace(SESSION, credentials=SESSION.credentials | {"elsewhere"})}
    )
    verdict = decide(PEER, API, RequestHead("GET", "/x", ()), there)
    assert isinstance(verdict, Inject)
    assert [(i.credential.name, i.handle) for i in verdict.injections] == [("free", None)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"origins": frozenset({OriginClass.MTLS})}, Reason.ORIGIN_CLASS_REFUSED),
        ({"isolation": Isolation.HARDWARE}, Reason.ISOLATION_REFUSED),
    ],
)
def test_an_optional_handle_needs_its_origin_class_and_isolation_all_the_same(
    changes: dict[str, object], why: Reason
) -> None:
    """Without a handle there is nothing but the origin to go by."""
    strict = replace(CREDENTIALS["free"], **changes)  # type: ignore[arg-type]
    verdict = decide(PEER, API, RequestHead("GET", "/x", ()), varied((rule("r", "/x", "free"),), free=strict))
    assert (denied(verdict).reason, denied(verdict).rule) == (why, "r")


EVIL = Destination("https", "evil.example", 443)


@pytest.mark.parametrize(
    ("text", "why", "detail"),
    [
        ("cch_eyJforged", Reason.HOST_NOT_ALLOWED, "not ours"),
        (STOLEN, Reason.HANDLE_STOLEN, "handle jti-stolen of session ses_b, used by session ses_a"),
        ("cch_eyJapi", Reason.HANDLE_WRONG_HOST, "credential api: host_not_allowed"),
    ],
)
def test_a_handle_on_a_refused_request_says_whose_it_was(text: str, why: Reason, detail: str) -> None:
    """All of them are alarms: forged, of another session, our own."""
    denial = denied(decide(PEER, EVIL, RequestHead("GET", "/", (("x", text),)), world()))
    assert denial == Deny(why, detail, alarm=True)


def test_a_refused_request_keeps_its_own_detail_and_rule_beside_a_handle() -> None:
    """The policy's reader must find the rule that came closest."""
    denial = denied(decide(PEER, API, RequestHead("GET", "/a/../b", (("x", "cch_eyJforged"),)), world()))
    assert (denial.reason, denial.detail) == (Reason.PATH_FORM_REFUSED, "a dot segment in the path")
    foreign = replace(CREDENTIALS["git"], hosts=(HostPattern("git.example.org"),))
    there = varied((rule("closest", "/x", "git"),), git=foreign)
    denial = denied(decide(PEER, API, RequestHead("PUT", "/x", (("x", "cch_eyJgit"),)), there))
    assert (denial.reason, denial.rule) == (Reason.HANDLE_WRONG_HOST, "closest")
