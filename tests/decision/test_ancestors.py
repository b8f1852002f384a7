"""What a forked or woken sandbox's processes still hold: a name for its own grant, and no authority."""

from dataclasses import replace

import pytest

from coatcheck.decision.decide import DecisionContext, Identified, NeedBody, decide, decide_body
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.handle import Claims
from coatcheck.decision.message import Origin, OriginClass, Peer, RequestHead
from coatcheck.decision.session import Isolation, Now, Session
from coatcheck.decision.verdict import Inject
from tests.decision.test_decide import API, CREDENTIALS, POLICY, SESSION, alarm, reason


def _clone(name: str, *ancestors: str) -> Session:
    origin = Origin(OriginClass.SOCKET, name)
    line = frozenset(ancestors)
    born = 1 + len(line)
    return replace(SESSION, id=name, origin=origin, ancestors=line, generation=born, born=born)


PARENT = replace(SESSION, revoked=True, generation=3)
"""Over for long, as it may be when a clone of its snapshot runs; and rebound twice since."""
CLONE = _clone("ses_clone", "ses_a")
SIBLING = _clone("ses_sibling", "ses_a")
GRANDCHILD = _clone("ses_grandchild", "ses_a", "ses_clone")
HELD = {
    f"cch_eyJ{session}-{name}": Claims(session, name, generation, 0, 5, f"jti-{session}-{name}")
    for session, generation in (("ses_a", 1), ("ses_clone", 2), ("ses_sibling", 2), ("ses_stranger", 1))
    for name in ("api", "git", "body")
}
"""Each expired at 5 s, and the parent's is of an older generation than the parent."""
OWN = Claims("ses_clone", "api", 2, 0, 900, "jti-own")

LATER = {
    f"cch_eyJlater-{generation}": Claims("ses_a", "api", generation, 0, 900, f"jti-later-{generation}")
    for generation in (2, 3)
}
"""What the parent got by its rebinds, after the fork."""


def world(*sessions: Session, inherit: bool = True, at: float = 10.0) -> DecisionContext:
    credentials = {name: replace(each, inherit=inherit) for name, each in CREDENTIALS.items()}
    held = HELD | LATER | {"cch_eyJown": OWN}
    return DecisionContext(
        now=Now(at, at),
        by_origin={each.origin: each for each in sessions},
        policies={"default": replace(POLICY, credentials=credentials)},
        claims_of=lambda text: held.get(text) or Deny(Reason.HANDLE_UNKNOWN, "wrong signature", alarm=True),
        references=(),
        known=lambda _: False,
        by_id={each.id: each for each in sessions},
    )


FAMILY = (PARENT, CLONE, SIBLING, GRANDCHILD)


def ask(on: Session, handle: str, *, path: str = "/v1", inherit: bool = True) -> object:
    head = RequestHead("GET", path, (("authorization", f"Bearer {handle}"),), end_stream=True)
    return decide(Peer(on.id, (on.origin,)), API, head, world(*FAMILY, on, inherit=inherit))


def test_a_clones_process_keeps_calling_with_the_string_that_it_holds() -> None:
    """On the clone's channel it names the clone's grant, also when its own end and generation are over."""
    verdict = ask(CLONE, "cch_eyJses_a-api")
    assert isinstance(verdict, Inject)
    assert verdict.session.id == "ses_clone"
    assert [each.handle for each in verdict.injections] == ["cch_eyJses_a-api"]


def test_a_clones_own_string_counts_as_ever() -> None:
    """New processes get new strings."""
    assert isinstance(ask(CLONE, "cch_eyJown"), Inject)


@pytest.mark.parametrize("handle", ["cch_eyJses_a-api", "cch_eyJses_clone-api"])
def test_a_clone_of_a_clone_reads_the_strings_of_its_whole_line(handle: str) -> None:
    """Its processes began in any of those lives."""
    verdict = ask(GRANDCHILD, handle)
    assert isinstance(verdict, Inject)
    assert verdict.session.id == "ses_grandchild"


@pytest.mark.parametrize(
    ("on", "handle"),
    [
        (CLONE, "cch_eyJses_sibling-api"),
        (SIBLING, "cch_eyJses_clone-api"),
        (CLONE, "cch_eyJses_stranger-api"),
        (replace(PARENT, revoked=False), "cch_eyJses_clone-api"),
    ],
    ids=["a sibling's", "in the sibling", "a stranger's", "on the parent's channel"],
)
def test_a_string_from_outside_of_the_line_is_stolen(on: Session, handle: str) -> None:
    """Ancestry goes one way: what was made after the fork, or elsewhere, counts nowhere else, and alarms."""
    verdict = ask(on, handle)
    assert reason(verdict) is Reason.HANDLE_STOLEN
    assert alarm(verdict)


def test_a_string_that_only_claims_to_be_an_ancestors_is_refused() -> None:
    """The signature is looked at before anything that it says."""
    verdict = ask(CLONE, "cch_eyJforged")
    assert reason(verdict) is Reason.HANDLE_UNKNOWN
    assert alarm(verdict)


def test_an_ancestors_string_that_was_revoked_is_dead_in_its_clones() -> None:
    """Somebody revoked that very string because it has leaked."""
    parent = replace(PARENT, revoked_handles=frozenset({"jti-ses_a-api"}))
    head = RequestHead("GET", "/v1", (("authorization", "Bearer cch_eyJses_a-api"),), end_stream=True)
    verdict = decide(Peer("c", (CLONE.origin,)), API, head, world(parent, CLONE))
    assert reason(verdict) is Reason.HANDLE_REVOKED


def test_an_ancestor_that_nobody_remembers_vouches_for_nothing() -> None:
    """Whether its string was revoked could not be told: that is a no."""
    head = RequestHead("GET", "/v1", (("authorization", "Bearer cch_eyJses_a-api"),), end_stream=True)
    verdict = decide(Peer("c", (CLONE.origin,)), API, head, world(CLONE))
    assert reason(verdict) is Reason.HANDLE_STALE


@pytest.mark.parametrize("generation", [2, 3])
def test_a_string_that_the_ancestor_got_after_the_fork_is_stale_in_the_clone(generation: int) -> None:
    """No process of the clone can hold it from before; the next child of the parent inherits it."""
    assert reason(ask(CLONE, f"cch_eyJlater-{generation}")) is Reason.HANDLE_STALE
    rebound = replace(CLONE, generation=9)  # its own new life makes nothing of its parent's older
    assert reason(ask(rebound, f"cch_eyJlater-{generation}")) is Reason.HANDLE_STALE
    child = replace(_clone("ses_child", "ses_a"), generation=4, born=4)
    assert isinstance(ask(child, f"cch_eyJlater-{generation}"), Inject)


def test_a_later_string_does_not_count_in_a_later_fork_of_the_fork_either() -> None:
    """It was no string of the clone's, so the grandchild did not inherit it, however late it was born."""
    late = replace(GRANDCHILD, generation=9, born=9)
    assert isinstance(ask(late, "cch_eyJses_a-api"), Inject)
    assert isinstance(ask(late, "cch_eyJses_clone-api"), Inject)
    for generation in (2, 3):
        assert reason(ask(late, f"cch_eyJlater-{generation}")) is Reason.HANDLE_STALE


def test_a_line_that_is_not_known_whole_vouches_for_nothing() -> None:
    """The clone between the two would tell when the line left its first ancestor, and is forgotten."""
    head = RequestHead("GET", "/v1", (("authorization", "Bearer cch_eyJses_a-api"),), end_stream=True)
    verdict = decide(Peer("c", (GRANDCHILD.origin,)), API, head, world(PARENT, GRANDCHILD))
    assert reason(verdict) is Reason.HANDLE_STALE
    unknown = replace(CLONE, born=0)
    verdict = decide(Peer("c", (CLONE.origin,)), API, head, world(PARENT, unknown))
    assert reason(verdict) is Reason.HANDLE_STALE


def test_what_the_clone_was_not_granted_an_ancestors_string_does_not_give() -> None:
    """A name, not authority."""
    clone = replace(CLONE, credentials=frozenset({"git"}))
    assert reason(ask(clone, "cch_eyJses_a-api")) is Reason.HANDLE_OUT_OF_SCOPE


def test_a_credential_that_is_not_inherited_needs_the_clones_own_string() -> None:
    """`inherit: false`: an earlier life's string is stale; one's own counts."""
    assert reason(ask(CLONE, "cch_eyJses_a-api", inherit=False)) is Reason.HANDLE_STALE
    assert isinstance(ask(CLONE, "cch_eyJown", inherit=False), Inject)


def test_an_ancestors_string_still_belongs_to_its_place() -> None:
    """Another credential's place is wrong for it, as for one's own; and it is reported."""
    verdict = ask(CLONE, "cch_eyJses_a-git")
    assert reason(verdict) is Reason.HANDLE_WRONG_HOST
    assert alarm(verdict)


def test_an_ancestors_string_in_a_refused_request_is_no_theft() -> None:
    """To its own host it is a client that the policy restricts, which is no news."""
    verdict = ask(CLONE, "cch_eyJses_a-api", path="/elsewhere")
    assert reason(verdict) is Reason.PATH_NOT_ALLOWED
    assert not alarm(verdict)


def test_the_isolation_that_is_asked_for_is_the_clones() -> None:
    """What the parent ran in says nothing about the clone."""
    credentials = CREDENTIALS | {"api": replace(CREDENTIALS["api"], isolation=Isolation.HARDWARE)}
    there = world(PARENT, CLONE)
    strict = replace(there, policies={"default": replace(POLICY, credentials=credentials)})
    head = RequestHead("GET", "/v1", (("authorization", "Bearer cch_eyJses_a-api"),), end_stream=True)
    assert reason(decide(Peer("c", (CLONE.origin,)), API, head, strict)) is Reason.ISOLATION_REFUSED


def test_an_ancestors_string_in_a_declared_body_is_the_clones_own() -> None:
    """Where a body is read for handles, both kinds are looked at alike; a sibling's is stolen there, too."""
    head = RequestHead("POST", "/slack", (), end_stream=False)
    there = world(*FAMILY)
    need = decide(Peer("c", (CLONE.origin,)), API, head, there)
    assert isinstance(need, NeedBody)
    assert isinstance(decide_body(need, b'{"token": "cch_eyJses_a-body"}', there), Inject)
    refused = decide_body(need, b'{"token": "cch_eyJses_sibling-body"}', there)
    assert isinstance(refused, Deny)
    assert refused.reason is Reason.HANDLE_STOLEN


def test_a_clone_that_is_over_may_nothing() -> None:
    """Its own life counts, whatever its ancestors are."""
    over = replace(CLONE, revoked=True)
    verdict = ask(over, "cch_eyJses_a-api")
    assert not isinstance(verdict, Identified)
    assert reason(verdict) is Reason.SESSION_REVOKED
