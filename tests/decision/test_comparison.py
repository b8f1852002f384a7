"""Two verdicts side by side."""

from dataclasses import replace

import pytest

from coatcheck.decision.approval import Asking
from coatcheck.decision.comparison import Comparison, Judged, answer_of, compare, session_of
from coatcheck.decision.decide import Identified, NeedBody
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Origin, OriginClass
from coatcheck.decision.policy import Credential, HostPattern, Rule, SecretRef
from coatcheck.decision.session import Isolation, Session
from coatcheck.decision.verdict import Inject, Injection, Pass
from coatcheck.injectors.body import BodyInjection
from coatcheck.injectors.header import HeaderInjection

SESSION = Session(
    "s-1", "acme", "agent", "default", Origin(OriginClass.SOCKET, "s-1"), frozenset({"api"}), Isolation.NONE,
    0, 0.0, 1.0, 1.0, 1.0,
)  # fmt: skip
HOSTS = (HostPattern("api.example.org"),)
RULE = Rule("calls", HOSTS, frozenset({"GET"}), ())
OTHER = replace(RULE, name="other")
ASKING = replace(RULE, asking=Asking())
API = Credential("api", SecretRef("memory", "secret", "api", "key"), HOSTS, HeaderInjection("authorization"))
BODY = replace(API, name="body", inject=BodyInjection("token"))
ELSEWHERE = replace(API, secret=SecretRef("memory", "secret", "admin", "key"))
WIDER = replace(API, hosts=(*HOSTS, HostPattern("example.net")), revoke_on_theft=True)


def inject(credential: Credential = API, rule: Rule = RULE, handle: str | None = "h") -> Inject:
    return Inject(SESSION, rule, (Injection(credential, handle),))


def need(credential: Credential = BODY, limit: int = 10) -> NeedBody:
    return NeedBody(SESSION, RULE, (credential,), (), limit)


def refused(reason: Reason, rule: str | None = None) -> Identified:
    return Identified(SESSION, Deny(reason, "any words", rule=rule))


@pytest.mark.parametrize(
    ("active", "candidate", "expected"),
    [
        (Pass(SESSION, RULE), Pass(SESSION, RULE), Comparison.SAME),
        (Pass(SESSION, RULE), Pass(SESSION, OTHER), Comparison.RULE),
        (Pass(SESSION, RULE), inject(), Comparison.CREDENTIALS),
        (inject(), Pass(SESSION, RULE), Comparison.CREDENTIALS),
        (inject(), inject(), Comparison.SAME),
        (inject(), inject(WIDER), Comparison.SAME),
        (inject(), inject(rule=OTHER), Comparison.RULE),
        (inject(), inject(ELSEWHERE), Comparison.CREDENTIALS),
        (inject(), inject(handle=None), Comparison.CREDENTIALS),
        (inject(), inject(replace(API, inject=HeaderInjection("x-api-key"))), Comparison.CREDENTIALS),
        (inject(), refused(Reason.PATH_NOT_ALLOWED), Comparison.REFUSES),
        (refused(Reason.PATH_NOT_ALLOWED), inject(), Comparison.ALLOWS),
        (refused(Reason.PATH_NOT_ALLOWED), need(), Comparison.ALLOWS),
        (refused(Reason.PATH_NOT_ALLOWED), refused(Reason.PATH_NOT_ALLOWED, "x"), Comparison.SAME),
        (refused(Reason.PATH_NOT_ALLOWED), refused(Reason.HOST_NOT_ALLOWED), Comparison.REASON),
        (need(), need(), Comparison.SAME),
        (need(), need(limit=11), Comparison.CREDENTIALS),
        (need(), need(replace(BODY, isolation=Isolation.HARDWARE)), Comparison.CREDENTIALS),
        (need(), inject(), Comparison.CREDENTIALS),
        (Pass(SESSION, RULE), Pass(SESSION, ASKING), Comparison.ASKS),
        (inject(rule=ASKING), inject(), Comparison.ASKS),
        (Pass(SESSION, ASKING), Pass(SESSION, ASKING), Comparison.SAME),
        (SESSION, SESSION, Comparison.SAME),
        (SESSION, refused(Reason.HOST_NOT_ALLOWED), Comparison.REFUSES),
        (SESSION, Pass(SESSION, RULE), Comparison.RULE),
    ],
)
def test_what_a_candidate_would_change(active: Judged, candidate: Judged, expected: Comparison) -> None:
    """Which requests pass, and which secret goes where; a rule's name counts less, details do not."""
    assert compare(active, candidate) is expected


def test_an_answer_is_told_in_words() -> None:
    """For people, with the names that stand in the policy."""
    assert str(answer_of(inject())) == "allowed, rule calls, with api"
    assert str(answer_of(need())) == "allowed, rule calls, with body"
    assert (
        str(answer_of(refused(Reason.PATH_NOT_ALLOWED, "calls"))) == "refused, path_not_allowed, rule calls"
    )
    both = replace(need(), injections=(Injection(API, "h"),))
    assert str(answer_of(both)) == "allowed, rule calls, with api, body"
    assert str(answer_of(refused(Reason.PATH_NOT_ALLOWED))) == "refused, path_not_allowed"
    assert str(answer_of(SESSION)) == "allowed"


def test_what_is_shown_before_a_body_counts_in_any_order() -> None:
    """Two verdicts find the same handles, each in the order of its policy."""
    one, other = Injection(API, "h"), Injection(ELSEWHERE, "i")
    for made in (inject(), need()):
        assert compare(replace(made, injections=(one, other)), replace(made, injections=(other, one))) is (
            Comparison.SAME
        )
        assert compare(replace(made, injections=(one,)), replace(made, injections=(other,))) is (
            Comparison.CREDENTIALS
        )


def test_whose_request_it_was() -> None:
    """A bare Deny is one that no policy was asked about."""
    assert session_of(Deny(Reason.ORIGIN_UNKNOWN)) is None
    assert all(session_of(each) is SESSION for each in (SESSION, inject(), need(), refused(Reason.CAPACITY)))
