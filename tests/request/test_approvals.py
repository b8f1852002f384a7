"""Held requests: answered once, in bounded number and time, remembered only as the rule says."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.policy import Rule, strictest
from coatcheck.decision.session import Now, Session
from coatcheck.decision.verdict import Pass
from coatcheck.policy import load_policy
from coatcheck.request.approvals import Answer, Approvals, NotWaiting
from coatcheck.state.sessions import NewSession
from coatcheck.state.state import State
from coatcheck.telemetry.audit.log import AuditUnavailable
from coatcheck.telemetry.events import ApprovalChange, ApprovalEvent, Event
from tests.asking import held, waiting

POLICY = """
version: 1
owner: tests
rules:
  - name: merge
    hosts: [api.example.org]
    methods: [PUT]
    ask: {ASK}
"""
YES = Answer(True, "alice")
NO = Answer(False, "alice")


class Desk:
    """Approvals with a real state, what they told, and a clock that a test moves."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.told: list[ApprovalEvent] = []
        self.full = False
        self.later = 0.0
        self.approvals = Approvals(self.emit, self.now, max_waiting=8, max_session_waiting=3)
        self.use("{wait: 10m, remember: 15m}")

    def emit(self, event: Event) -> None:
        if self.full:
            raise AuditUnavailable("disk full")
        assert isinstance(event, ApprovalEvent)
        self.told.append(event)

    def now(self) -> Now:
        now = self.state.clock.now()
        return Now(now.wall + self.later, now.monotonic + self.later)

    def use(self, ask: str) -> None:
        self.state.swap_policies({"default": load_policy("default", POLICY.replace("{ASK}", ask).encode())})

    def open(self, subject: str = "agent", tenant: str = "acme") -> Session:
        return self.state.open_session(NewSession(tenant, subject, "default"), "test")[0]

    def held(self, session: Session, target: str = "/merge") -> "asyncio.Task[str | Deny]":
        return held(self.approvals, self.state, session, target, len(self.told))

    async def only(self) -> str:
        """The id of the one that waits."""
        await waiting(self.approvals, 1)
        return self.approvals.waiting()[0].id

    @property
    def changes(self) -> list[ApprovalChange]:
        return [event.change for event in self.told]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    state = State.open(tmp_path / "sessions", emit=lambda event: None)
    yield Desk(state)
    state.close()


def why(answer: object) -> Reason:
    assert isinstance(answer, Deny)
    return answer.reason


async def test_it_leaves_after_a_yes_and_its_approver_is_recorded_first(desk: Desk) -> None:
    """Asked, then approved, by whom."""
    request = desk.held(desk.open())
    desk.approvals.answer(await desk.only(), YES)
    assert [event.approver for event in desk.told] == ["", "alice"]
    assert await request == "alice"
    assert desk.changes == [ApprovalChange.ASKED, ApprovalChange.APPROVED]
    assert not desk.approvals.waiting()


async def test_a_no_is_no(desk: Desk) -> None:
    """And says who said it to the operator, not to the sandbox: `detail` is not in the answer."""
    request = desk.held(desk.open())
    desk.approvals.answer(await desk.only(), NO)
    denial = await request
    assert why(denial) is Reason.APPROVAL_REFUSED and desk.changes[-1] is ApprovalChange.REFUSED


async def test_silence_is_no(desk: Desk) -> None:
    """After as long as the rule says; a late answer is told so."""
    desk.use("{wait: 1s}")
    request = desk.held(desk.open())
    approval = await desk.only()
    assert why(await request) is Reason.APPROVAL_TIMEOUT
    assert desk.changes[-1] is ApprovalChange.EXPIRED
    with pytest.raises(NotWaiting, match="no answer came within 1 s"):
        desk.approvals.answer(approval, YES)


async def test_a_yes_after_the_machine_slept_is_late(desk: Desk) -> None:
    """The loop's clock stands still in a suspended machine; the wall clock does not."""
    request = desk.held(desk.open())
    approval = await desk.only()
    desk.later = 601
    with pytest.raises(NotWaiting):
        desk.approvals.answer(approval, YES)
    request.cancel()


async def test_the_first_word_counts(desk: Desk) -> None:
    """The second answer learns what the first one was."""
    request = desk.held(desk.open())
    approval = await desk.only()
    desk.approvals.answer(approval, NO)
    with pytest.raises(NotWaiting, match="alice said no"):
        desk.approvals.answer(approval, YES)
    assert why(await request) is Reason.APPROVAL_REFUSED
    with pytest.raises(NotWaiting):
        desk.approvals.answer("apr_0000000000000000", YES)


async def test_an_answer_that_cannot_be_recorded_does_not_count(desk: Desk) -> None:
    """It waits on. A question that cannot be recorded is not even asked (I8)."""
    request = desk.held(desk.open())
    approval = await desk.only()
    desk.full = True
    with pytest.raises(AuditUnavailable):
        desk.approvals.answer(approval, YES)
    with pytest.raises(AuditUnavailable):
        await desk.held(desk.open("another"))
    desk.full = False
    assert not request.done()
    desk.approvals.answer(approval, YES)
    assert await request == "alice"


async def test_a_yes_is_remembered_only_if_whoever_said_it_wants_that(desk: Desk) -> None:
    """For this request, and then for as long as they say, the rule's time at most."""
    session = desk.open()
    for remember, asked_again in ((0.0, True), (1e9, False)):
        request = desk.held(session)
        desk.approvals.answer(await desk.only(), Answer(True, "alice", remember))
        assert await request == "alice"
        again = desk.held(session)
        if asked_again:
            desk.approvals.answer(await desk.only(), NO)
            assert why(await again) is Reason.APPROVAL_REFUSED
        else:
            assert await again == "alice" and not desk.approvals.waiting()
    assert desk.told[-1].remembered_seconds == 900
    desk.later = 901
    late = desk.held(session)
    desk.approvals.answer(await desk.only(), NO)
    assert why(await late) is Reason.APPROVAL_REFUSED


async def test_a_rule_that_remembers_nothing_asks_each_time(desk: Desk) -> None:
    """Whatever the approver wants."""
    desk.use("{wait: 5m}")
    session = desk.open()
    for _ in range(2):
        request = desk.held(session)
        desk.approvals.answer(await desk.only(), Answer(True, "alice", 900))
        assert await request == "alice"


async def test_a_no_is_never_remembered(desk: Desk) -> None:
    """The same request may ask again, and be let through."""
    session = desk.open()
    request = desk.held(session)
    desk.approvals.answer(await desk.only(), Answer(False, "alice", 900))
    assert why(await request) is Reason.APPROVAL_REFUSED
    assert desk.told[-1].remembered_seconds == 0, "nor is it recorded as if it were"
    again = desk.held(session)
    desk.approvals.answer(await desk.only(), YES)
    assert await again == "alice"


async def test_a_remembered_yes_covers_no_other_request_and_no_other_session(desk: Desk) -> None:
    """Nor the same under another policy."""
    session, other = desk.open(), desk.open("another")
    request = desk.held(session)
    desk.approvals.answer(await desk.only(), Answer(True, "alice", 900))
    await request
    for target, who in (("/merge?force=1", session), ("/other", session), ("/merge", other)):
        request = desk.held(who, target)
        desk.approvals.answer(await desk.only(), NO)
        assert why(await request) is Reason.APPROVAL_REFUSED
    desk.use("{wait: 9m, remember: 15m}")
    request = desk.held(session)
    desk.approvals.answer(await desk.only(), NO)
    assert why(await request) is Reason.APPROVAL_REFUSED


async def test_one_session_cannot_bury_the_others(desk: Desk) -> None:
    """It has its own bound, and all of its tenant together have one, which leaves room for other tenants."""
    first, second = desk.open(), desk.open("another")
    requests = [desk.held(first, f"/{number}") for number in range(3)]
    await waiting(desk.approvals, 3)
    async with asyncio.timeout(20):  # one that is let in would wait for somebody, and this for it
        assert why(await desk.held(first, "/more")) is Reason.CONCURRENCY_LIMITED
    requests.append(desk.held(second))
    await waiting(desk.approvals, 4)
    async with asyncio.timeout(20):
        assert why(await desk.held(desk.open("third"))) is Reason.CAPACITY
    requests.append(desk.held(desk.open("fourth", "other")))
    await waiting(desk.approvals, 5)
    for each in desk.approvals.waiting():
        desk.approvals.answer(each.id, YES)
    assert await asyncio.gather(*requests) == ["alice"] * 5


async def test_what_a_client_gave_up_is_no_longer_asked(desk: Desk) -> None:
    """Nor what a session asked that is over."""
    request = desk.held(desk.open())
    approval = await desk.only()
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    assert desk.changes[-1] is ApprovalChange.WITHDRAWN and not desk.approvals.waiting()
    with pytest.raises(NotWaiting, match="went away"):
        desk.approvals.answer(approval, YES)
    session = desk.open("another")
    request = desk.held(session)
    await desk.only()
    desk.approvals.forget_session(session.id)
    assert why(await request) is Reason.SESSION_REVOKED


async def test_what_is_shown_holds_no_handle_and_no_value_of_a_query(desk: Desk) -> None:
    """The approver sees names; so does the record."""
    minted = desk.state.open_session(NewSession("acme", "agent", "default"), "test")
    handle = ".".join(("cch_eyJ" + "A" * 60, "B" * 160, "C" * 86))
    request = desk.held(minted[0], f"/x/{handle}?token={handle}&key=hunter2")
    await desk.only()
    shown = desk.approvals.waiting()[0].path
    assert handle not in shown and "hunter2" not in shown and shown.endswith("?token=…&key=…")
    assert desk.told[-1].path == shown
    request.cancel()


async def test_a_path_that_is_too_long_to_show_says_so(desk: Desk) -> None:
    """The end of a path may be what matters: nobody approves a beginning for the whole."""
    whole = desk.held(desk.open(), "/" + "a" * 2047)
    await waiting(desk.approvals, 1)
    cut = desk.held(desk.open("another"), "/" + "a" * 2047 + "/force-merge")
    await waiting(desk.approvals, 2)
    first, second = (each.path for each in desk.approvals.waiting())
    assert first == "/" + "a" * 2047
    assert second.endswith("a … (12 more characters)") and "force" not in second
    whole.cancel()
    cut.cancel()


async def test_what_else_a_request_may_be_taken_for_is_shown_and_is_another_question(desk: Desk) -> None:
    """A yes to what it seems is none to what a header makes of it, and the other way round."""
    session = desk.open()
    rule = desk.state.policies["default"].rules[0]
    here = Destination("https", "api.example.org", 443)
    handle = ".".join(("cch_eyJ" + "A" * 60, "B" * 160, "C" * 86))

    def asked(*headers: tuple[str, str]) -> "asyncio.Task[str | Deny]":
        head = RequestHead("PUT", "/merge", headers)
        return asyncio.ensure_future(desk.approvals.ask("r1", here, head, Pass(session, rule), desk.state))

    plain = asked()
    desk.approvals.answer(await desk.only(), Answer(True, "alice", 900))
    assert await plain == "alice" and await asked(("accept", "*/*")) == "alice"
    for header, shown in (
        (("x-http-method-override", "DELETE"), "DELETE by an override"),
        (("x-original-url", f"/other/{handle}"), "/other/"),
        (("x-amz-copy-source", "/bucket/key"), "GET /bucket/key by x-amz-copy-source"),
    ):
        other = asked(header)
        approval = await desk.only()
        (reading,) = desk.approvals.waiting()[0].readings
        assert reading.startswith(shown) and handle not in reading and desk.told[-1].readings == (reading,)
        desk.approvals.answer(approval, Answer(True, "alice", 900))
        assert await other == "alice" and await asked(header) == "alice"
        request = asked(header, ("x-forwarded-uri", "/more"))
        desk.approvals.answer(await desk.only(), NO)
        assert why(await request) is Reason.APPROVAL_REFUSED


async def test_a_yes_to_a_whole_rule_is_none_to_a_request_with_other_readings(desk: Desk) -> None:
    """Nor to one under the terms of another rule: its approver was shown neither."""
    desk.use("{wait: 10m, remember: 15m, same: rule}")
    session = desk.open()
    rule = desk.state.policies["default"].rules[0]
    here = Destination("https", "api.example.org", 443)

    def asked(of: Rule, *headers: tuple[str, str]) -> "asyncio.Task[str | Deny]":
        head = RequestHead("PUT", "/merge", headers)
        return asyncio.ensure_future(desk.approvals.ask("r1", here, head, Pass(session, of), desk.state))

    first = asked(rule)
    desk.approvals.answer(await desk.only(), Answer(True, "alice", 900))
    assert await first == "alice" and await desk.held(session, "/another") == "alice"
    more = strictest(rule, [replace(rule, name="another rule")])
    for of, headers in ((rule, (("x-http-method-override", "DELETE"),)), (more, ())):
        request = asked(of, *headers)
        desk.approvals.answer(await desk.only(), NO)
        assert why(await request) is Reason.APPROVAL_REFUSED
