"""Logins are short, few, of two halves, and end with whatever let them in."""

import hashlib

import pytest

from coatcheck.control.caller import Caller, Role, owner
from coatcheck.control.grants import Grants
from coatcheck.control.page.logins import (
    FAILURE_SECONDS,
    IDLE_SECONDS,
    LIFE_SECONDS,
    LINK_SECONDS,
    MAX_FAILURES,
    MAX_LINKS,
    MAX_LINKS_OF_CALLER,
    MAX_LOGINS,
    MAX_OF_CALLER,
    Logins,
)
from coatcheck.control.problem import ControlProblem

HERE = "127.0.0.1"


def caller(name: str, role: Role = Role.OPERATOR) -> Caller:
    return Caller(name, role, frozenset({"acme"}))


def grants(*names: str, role: Role = Role.OPERATOR) -> Grants:
    """Callers whose token is their name."""
    entries = tuple((hashlib.sha256(name.encode()).digest(), caller(name, role)) for name in names)
    return Grants({1000: owner("uid:1000")}, entries)


GRANTS = grants("alice", "bob")


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def logins(clock: Clock) -> Logins:
    return Logins(clock)


def refused(problem: pytest.ExceptionInfo[ControlProblem]) -> str:
    return str(problem.value.reason)


def test_a_token_opens_a_login_of_two_halves(logins: Logins) -> None:
    """Neither the cookie nor the key says anything without the other; nor do those of another login."""
    opened, who = logins.by_token("alice", HERE, GRANTS)
    other, _ = logins.by_token("bob", HERE, GRANTS)
    assert who.name == "alice"
    found = logins.find(opened.cookie, opened.key, GRANTS)
    assert found is not None and found[1].name == "alice"
    for cookie, key in (
        (opened.cookie, other.key),
        (other.cookie, opened.key),
        (opened.key, opened.cookie),
        (opened.cookie, ""),
        ("", opened.key),
    ):
        assert logins.find(cookie, key, GRANTS) is None
    assert len({opened.cookie, opened.key, other.cookie, other.key}) == 4


def test_each_login_has_a_new_cookie(logins: Logins) -> None:
    """One that somebody planted before is worth nothing afterwards (session fixation)."""
    first, _ = logins.by_token("alice", HERE, GRANTS)
    second, _ = logins.by_token("alice", HERE, GRANTS)
    assert first.cookie != second.cookie
    assert logins.find(first.cookie, second.key, GRANTS) is None


def test_it_ends_after_a_shift_and_earlier_without_use(logins: Logins, clock: Clock) -> None:
    """Each look is a use; the clock is the one that goes on while the machine sleeps."""
    used, _ = logins.by_token("alice", HERE, GRANTS)
    idle, _ = logins.by_token("bob", HERE, GRANTS)
    end = clock.at + LIFE_SECONDS
    while clock.at + IDLE_SECONDS - 1 < end:
        clock.at += IDLE_SECONDS - 1
        assert logins.find(used.cookie, used.key, GRANTS) is not None
    assert logins.find(idle.cookie, idle.key, GRANTS) is None
    clock.at = end
    assert logins.find(used.cookie, used.key, GRANTS) is None


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(grants("bob"), id="the caller is gone"),
        pytest.param(
            Grants({}, ((hashlib.sha256(b"a new token").digest(), caller("alice")),)), id="a new token"
        ),
        pytest.param(Grants({7: caller("alice")}), id="another proof"),
    ],
)
def test_it_ends_with_what_let_it_in(logins: Logins, later: Grants) -> None:
    """A token that leaked is replaced: what was opened with it is over at once, streams included."""
    opened, _ = logins.by_token("alice", HERE, GRANTS)
    found = logins.find(opened.cookie, opened.key, GRANTS)
    assert found is not None
    assert logins.still(found[0], later) is None
    assert logins.find(opened.cookie, opened.key, later) is None


def test_it_has_the_grants_of_now(logins: Logins) -> None:
    """An operator who became an auditor revokes nothing from a page that was open."""
    opened, _ = logins.by_token("alice", HERE, GRANTS)
    found = logins.find(opened.cookie, opened.key, grants("alice", role=Role.AUDITOR))
    assert found is not None and found[1].role is Role.AUDITOR


def test_leaving_ends_it_for_all_its_windows(logins: Logins) -> None:
    """A stream that runs asks `still` again and again."""
    opened, _ = logins.by_token("alice", HERE, GRANTS)
    found = logins.find(opened.cookie, opened.key, GRANTS)
    assert found is not None and logins.still(found[0], GRANTS) is not None
    logins.leave(opened.cookie)
    logins.leave(opened.cookie)
    assert logins.still(found[0], GRANTS) is None


def test_wrong_tokens_are_few_and_then_right_ones_do_not_help(logins: Logins, clock: Clock) -> None:
    """Otherwise guessing would go on. From another address, and a minute later, the right one counts."""
    for number in range(MAX_FAILURES):
        with pytest.raises(ControlProblem) as problem:
            logins.by_token(f"guess {number}", HERE, GRANTS)
        assert refused(problem) == "unauthenticated"
    with pytest.raises(ControlProblem) as problem:
        logins.by_token("alice", HERE, GRANTS)
    assert refused(problem) == "busy" and "coatcheck page" in problem.value.hint
    assert logins.by_token("alice", "10.0.0.1", GRANTS)
    clock.at += FAILURE_SECONDS
    assert logins.by_token("alice", HERE, GRANTS)


def test_failures_do_not_add_up_over_a_day(logins: Logins, clock: Clock) -> None:
    """Somebody mistypes now and then."""
    for _ in range(3 * MAX_FAILURES):
        with pytest.raises(ControlProblem):
            logins.by_token("guess", HERE, GRANTS)
        clock.at += FAILURE_SECONDS / (MAX_FAILURES - 1)
    clock.at += FAILURE_SECONDS
    assert logins.by_token("alice", HERE, GRANTS)


def test_a_link_logs_its_caller_in_once_and_soon(logins: Logins, clock: Clock) -> None:
    """Used, old, forgotten, or of a caller that is gone: it is of no use."""
    code = logins.link(owner("uid:1000"))
    _, who, how = logins.by_link(code, GRANTS)
    assert (who.name, who.role, how) == ("uid:1000", Role.OWNER, "a link")
    late, gone, forgotten = (
        logins.link(caller("alice")),
        logins.link(caller("carol")),
        logins.link(caller("bob")),
    )
    for _ in range(MAX_LINKS - 2):
        logins.link(caller("alice"))
    logins.link(caller("alice"))
    clock.at += LINK_SECONDS / 2
    with pytest.raises(ControlProblem):
        logins.by_link(gone, GRANTS)
    assert logins.by_link(forgotten, GRANTS)
    clock.at += LINK_SECONDS / 2
    for bad in (code, late, "", "x"):
        with pytest.raises(ControlProblem) as problem:
            logins.by_link(bad, GRANTS)
        assert refused(problem) == "unauthenticated"


def test_links_push_out_only_their_callers_own(logins: Logins, clock: Clock) -> None:
    """An auditor who asks for one after the other keeps no operator out; used and late ones leave room."""
    code = logins.link(caller("bob"))
    for _ in range(2 * MAX_LINKS):
        logins.link(caller("alice"))
    assert logins.by_link(code, GRANTS)[1].name == "bob"
    for number in range(MAX_LINKS - MAX_LINKS_OF_CALLER):
        logins.link(caller(f"op{number}"))
    with pytest.raises(ControlProblem) as problem:
        logins.link(caller("one more"))
    assert refused(problem) == "busy"
    clock.at += LINK_SECONDS
    assert logins.link(caller("bob"))


def test_a_launcher_does_not_log_in(logins: Logins) -> None:
    """It is a program, and what it starts must not watch over itself."""
    for enter in (
        lambda: logins.by_token("ci", HERE, grants("ci", role=Role.LAUNCHER)),
        lambda: logins.link(caller("ci", Role.LAUNCHER)),
    ):
        with pytest.raises(ControlProblem) as problem:
            enter()
        assert refused(problem) == "forbidden"


def test_logins_are_bounded(logins: Logins, clock: Clock) -> None:
    """Of one caller the longest unused gives way; nobody loses theirs to a stranger."""
    names = [f"op{number}" for number in range(MAX_LOGINS)]
    many = grants(*names)
    first, _ = logins.by_token("op0", HERE, many)
    second, _ = logins.by_token("op0", HERE, many)
    assert logins.find(first.cookie, first.key, many) is not None
    for _ in range(MAX_OF_CALLER - 1):
        logins.by_token("op0", HERE, many)
    assert logins.find(second.cookie, second.key, many) is None
    assert logins.find(first.cookie, first.key, many) is not None
    for name in names[1 : MAX_LOGINS - MAX_OF_CALLER + 1]:
        logins.by_token(name, HERE, many)
    with pytest.raises(ControlProblem) as problem:
        logins.by_token(names[-1], HERE, many)
    assert refused(problem) == "busy"
    clock.at += IDLE_SECONDS
    assert logins.by_token(names[-1], HERE, many)
