"""Sessions' lives, told with a clock that the test turns."""

from dataclasses import replace

import pytest

from coatcheck.decision.denial import Reason
from coatcheck.decision.message import Origin, OriginClass
from coatcheck.state import NewSession, Problem, State, StateError, StateSettings, Status
from coatcheck.state.registry import Taken
from coatcheck.telemetry.audit.log import AuditUnavailable
from coatcheck.telemetry.events import DaemonEvent, Event, Revocation, SessionChange, SessionEvent
from tests.state.house import POLICIES, WANTED, House, counts, reason


def test_a_session_opens_with_a_handle_for_each_credential(state: State) -> None:
    """Each in its shape, under its environment variable, for the session's whole life."""
    session, handles = state.open_session(replace(WANTED, credentials=None), "launcher")
    assert session.origin == Origin(OriginClass.SOCKET, session.id)
    assert [(h.credential, h.env) for h in handles] == [
        ("anthropic", "ANTHROPIC"),
        ("github", "GITHUB"),
        ("openai", "OPENAI"),
    ]
    anthropic, github, openai = (h.value for h in handles)
    assert openai.startswith("cch_eyJ") and anthropic.startswith("sk-ant-cch_eyJ")
    assert github.startswith("ghp_") and len(github) == 40 and github[4:].isalnum()
    assert all(h.expires_at == int(session.expires_at) for h in handles)
    for text in (openai, anthropic.removeprefix("sk-ant-"), github):
        assert counts(state, session, text) is None


def test_a_string_lives_while_its_lease_is_renewed_and_no_longer(house: House, state: State) -> None:
    """Three renewals with the same string; then silence, and within one lease it is dead."""
    session, (handle,) = state.open_session(WANTED, "launcher")
    for _ in range(3):
        house.time.passes(100)
        assert counts(state, session, handle.value) is None
        state.renew(session.id, "launcher")
    house.time.passes(119.9)
    assert counts(state, session, handle.value) is None
    house.time.passes(0.1)
    assert counts(state, session, handle.value) is Reason.LEASE_LAPSED


def test_a_lapsed_session_is_not_revived(house: House, state: State) -> None:
    """Its holder has lost it; sweep reports the end once."""
    session, _ = state.open_session(WANTED, "launcher")
    house.time.passes(120)
    with pytest.raises(StateError) as caught:
        state.renew(session.id, "launcher")
    assert caught.value.reason is Problem.SESSION_CLOSED and "lapsed" in caught.value.message
    assert [event.change for event in state.sweep()] == [SessionChange.LAPSED]
    assert state.sweep() == ()
    assert reason(state, session) is Reason.LEASE_LAPSED and state.status(session.id) is Status.LAPSED


def test_no_renewal_prolongs_the_maximum_age(house: House, state: State) -> None:
    """Renewed to the last second, the session ends with its age."""
    session, (handle,) = state.open_session(replace(WANTED, max_age=300), "launcher")
    for _ in range(3):
        house.time.passes(99)
        state.renew(session.id, "launcher")
    house.time.passes(3)
    assert counts(state, session, handle.value) is Reason.SESSION_EXPIRED
    assert [event.change for event in state.sweep()] == [SessionChange.EXPIRED]


def test_a_wall_clock_that_steps_back_revives_nothing(house: House, state: State) -> None:
    """Expired stays expired, in this run and in the next."""
    session, (handle,) = state.open_session(replace(WANTED, max_age=60), "launcher")
    house.time.passes(61)
    assert counts(state, session, handle.value) is Reason.SESSION_EXPIRED
    house.time.wall -= 7_200
    assert counts(state, session, handle.value) is Reason.SESSION_EXPIRED
    state = house.restart(state, down=-7_200)
    assert counts(state, session, handle.value) is Reason.SESSION_EXPIRED


def test_a_stolen_handle_is_dead_elsewhere(state: State) -> None:
    """Two sandboxes with the same grants: the string of one is worth nothing to the other."""
    _, (stolen,) = state.open_session(WANTED, "launcher")
    thief, _ = state.open_session(WANTED, "launcher")
    assert counts(state, thief, stolen.value) is Reason.HANDLE_STOLEN


def test_a_revoked_session_is_refused_reported_and_announced(house: House, state: State) -> None:
    """The epoch grows, planes are told, the audit has who and why; a second revocation changes nothing."""
    told: list[Taken] = []
    state.on_revoked(told.append)
    session, _ = state.open_session(WANTED, "launcher")
    epoch = state.sessions.epoch
    state.revoke(session.id, "operator", "leaked")
    assert reason(state, session) is Reason.SESSION_REVOKED
    assert state.sessions.epoch > epoch and told == [
        Taken((session.id,), Revocation.SESSION, house.time.monotonic)
    ]
    event = house.events[-1]
    assert isinstance(event, SessionEvent) and event.state_version == state.version
    assert (event.change, event.caller, event.detail) == (SessionChange.REVOKED, "operator", "leaked")
    assert state.revoke(session.id, "operator").revoked
    assert house.changes().count(SessionChange.REVOKED) == 1


def test_one_handle_is_revoked_and_the_others_live(house: House, state: State) -> None:
    """By its id, across a restart too."""
    session, (first,) = state.open_session(WANTED, "launcher")
    second = state.mint(session.id, "openai", 300)
    told: list[Taken] = []
    state.on_revoked(told.append)
    state.revoke_handle(session.id, first.jti, "operator")
    assert told == [Taken((session.id,), Revocation.HANDLE, house.time.monotonic)]
    for _ in range(2):
        assert counts(state, session, first.value) is Reason.HANDLE_REVOKED
        assert counts(state, session, second.value) is None
        state = house.restart(state)
    with pytest.raises(StateError) as caught:
        state.revoke_handle(session.id, "nothing", "operator")
    assert caught.value.reason is Problem.UNKNOWN_HANDLE


def test_many_sessions_are_revoked_in_one_write(house: House, state: State) -> None:
    """Those that are meant and live, told to the planes in one word; a restart revives none."""
    kept, _ = state.open_session(replace(WANTED, tenant="globex"), "launcher")
    meant = {state.open_session(WANTED, "launcher")[0].id for _ in range(20)}
    over, _ = state.open_session(WANTED, "launcher")
    state.end(over.id, "launcher")
    told: list[Taken] = []
    state.on_revoked(told.append)
    version = state.version
    assert set(state.revoke_where(lambda s: s.tenant == "acme", None, "operator", "leaked")) == meant
    assert state.version == version + 1
    assert [(set(taken.sessions), taken.what) for taken in told] == [(meant, Revocation.EVERYTHING)]
    assert house.changes()[-20:] == [SessionChange.REVOKED] * 20
    assert state.revoke_where(lambda s: s.tenant == "acme", None, "operator") == ()
    state = house.restart(state)
    assert all(state.status(each) is Status.REVOKED for each in meant)
    assert reason(state, kept) is None and state.status(over.id) is Status.ENDED


def test_a_credential_is_taken_from_sessions_that_go_on(house: House, state: State) -> None:
    """Every handle of it is dead, earlier ones and a new one; the others live. After a restart, too."""
    session, handles = state.open_session(
        replace(WANTED, credentials=frozenset({"openai", "github"})), "launcher"
    )
    without, _ = state.open_session(replace(WANTED, credentials=frozenset({"github"})), "launcher")
    values = {handle.credential: handle.value for handle in handles}
    told: list[Taken] = []
    state.on_revoked(told.append)
    epoch = state.sessions.epoch
    assert state.revoke_where(lambda s: True, "openai", "operator", "leaked") == (session.id,)
    assert told == [Taken((session.id,), Revocation.CREDENTIAL, house.time.monotonic)]
    assert state.sessions.epoch > epoch
    event = house.events[-1]
    assert isinstance(event, SessionEvent) and event.change is SessionChange.CREDENTIAL_REVOKED
    assert (event.caller, event.detail) == ("operator", "openai leaked")
    for _ in range(2):
        assert counts(state, session, values["openai"]) is Reason.HANDLE_OUT_OF_SCOPE
        assert counts(state, session, values["github"]) is None and reason(state, without) is None
        with pytest.raises(StateError) as caught:
            state.mint(session.id, "openai")
        assert caught.value.reason is Problem.UNKNOWN_CREDENTIAL
        state = house.restart(state)
    assert state.revoke_where(lambda s: True, "openai", "operator") == ()


def test_a_minted_handle_lives_for_minutes(house: House, state: State) -> None:
    """For clients that can refresh; never beyond the session."""
    session, _ = state.open_session(replace(WANTED, max_age=200), "launcher")
    short = state.mint(session.id, "openai", 60)
    assert state.mint(session.id, "openai", 9_999).expires_at == int(session.expires_at)
    house.time.passes(60)
    assert counts(state, session, short.value) is Reason.HANDLE_EXPIRED


def test_a_rebind_makes_old_handles_stale_at_once_and_for_good(house: House, state: State) -> None:
    """The sandbox has begun another life (I4): also after a restart."""
    session, (old,) = state.open_session(WANTED, "launcher")
    minted, epoch = state.mint(session.id, "openai"), state.sessions.epoch
    session, (new,) = state.rebind(session.id, "launcher")
    assert (session.generation, state.sessions.epoch) == (2, epoch + 1)
    for _ in range(2):
        for stale in (old, minted):
            assert counts(state, session, stale.value) is Reason.HANDLE_STALE
        assert counts(state, session, new.value) is None
        state = house.restart(state)


def test_a_rebind_gives_no_more_handles_than_a_session_may_have(house: House) -> None:
    """Somebody who rebinds in a loop fills no disk; refused, nothing has changed."""
    state = house.open(StateSettings(max_handles=3))
    session, (handle,) = state.open_session(WANTED, "launcher")
    for _ in range(2):
        session, (handle,) = state.rebind(session.id, "launcher")
    with pytest.raises(StateError) as caught:
        state.rebind(session.id, "launcher")
    assert caught.value.reason is Problem.CAPACITY
    assert state.session(session.id).generation == session.generation == 3
    assert counts(state, session, handle.value) is None


def test_a_rebind_that_cannot_be_recorded_leaves_the_old_handles_stale(house: House) -> None:
    """What takes is in force at once and stays: a full disk revives no handle. The next rebind gives some."""
    full = [False]

    def emit(event: Event) -> None:
        if full[0]:
            raise AuditUnavailable("disk full")
        house.events.append(event)

    state = State.open(house.directory, emit=emit, clock=house.time.clock())
    state.swap_policies(POLICIES)
    session, (old,) = state.open_session(WANTED, "launcher")
    full[0] = True
    with pytest.raises(StateError) as caught:
        state.rebind(session.id, "launcher")
    assert caught.value.reason is Problem.NOT_RECORDED
    assert counts(state, session, old.value) is Reason.HANDLE_STALE
    state.close()
    state = house.open()
    assert counts(state, session, old.value) is Reason.HANDLE_STALE
    again, (new,) = state.rebind(session.id, "launcher")
    assert counts(state, session, new.value) is None
    assert again.generation == 3


def test_a_session_begins_at_its_sandboxes_generation(house: House, state: State) -> None:
    """As the sandbox's lives are counted, and above its parent's whatever was asked for."""
    parent, _ = state.open_session(replace(WANTED, generation=5), "launcher")
    assert parent.generation == 5
    assert state.open_session(replace(WANTED, parent=parent.id), "launcher")[0].generation == 6
    child, (handle,) = state.open_session(replace(WANTED, parent=parent.id, generation=9), "launcher")
    assert child.generation == 9
    assert counts(house.restart(state), child, handle.value) is None


def test_a_rotated_key_leaves_running_sandboxes_alone(house: House, state: State) -> None:
    """Automatic after a day, with overlap: a handle of yesterday's key counts until it expires."""
    house.time.passes(86_390)
    session, (handle,) = state.open_session(replace(WANTED, lease_seconds=600), "launcher")
    house.time.passes(20)
    state.sweep()
    _, (new,) = state.open_session(WANTED, "launcher")
    assert handle.value.split(".")[0] != new.value.split(".")[0]
    assert counts(state, session, handle.value) is None
    assert counts(house.restart(state), session, handle.value) is None


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        (replace(WANTED, policy="nobody"), Problem.UNKNOWN_POLICY),
        (replace(WANTED, credentials=frozenset({"aws"})), Problem.UNKNOWN_CREDENTIAL),
        (replace(WANTED, tenant=""), Problem.BAD_VALUE),
        (replace(WANTED, subject="a\nb"), Problem.BAD_VALUE),
        (replace(WANTED, subject="x" * 201), Problem.BAD_VALUE),
        (replace(WANTED, lease_seconds=601), Problem.BAD_VALUE),
        (replace(WANTED, lease_seconds=0), Problem.BAD_VALUE),
        (replace(WANTED, lease_seconds=float("nan")), Problem.BAD_VALUE),
        (replace(WANTED, max_age=43_201), Problem.BAD_VALUE),
        (replace(WANTED, max_age=float("inf")), Problem.BAD_VALUE),
        (replace(WANTED, origin=Origin(OriginClass.SOCKET, "ses_other")), Problem.BAD_VALUE),
        (replace(WANTED, origin=Origin(OriginClass.ADDRESS, "")), Problem.BAD_VALUE),
        (NewSession("acme", "a", "weak"), Problem.BAD_VALUE),
    ],
)
def test_a_session_that_may_not_be_is_refused_with_a_hint(
    state: State, wanted: NewSession, problem: Problem
) -> None:
    """And leaves nothing behind."""
    with pytest.raises(StateError) as caught:
        state.open_session(wanted, "launcher")
    assert caught.value.reason is problem and caught.value.hint
    assert state.sessions.by_id == {} and state.version == 0


def test_an_origin_proves_one_live_session_at_a_time(house: House, state: State) -> None:
    """Taken while it lives; free again after, and the dead session does not take it back."""
    wanted = replace(WANTED, origin=Origin(OriginClass.ADDRESS, "shared|10.0.0.7"))
    first, _ = state.open_session(wanted, "launcher")
    with pytest.raises(StateError) as caught:
        state.open_session(wanted, "launcher")
    assert caught.value.reason is Problem.ORIGIN_TAKEN
    house.time.passes(120)
    second, (handle,) = state.open_session(wanted, "launcher")
    state.revoke(first.id, "operator")
    for _ in range(2):
        assert counts(state, second, handle.value) is None
        state = house.restart(state)
    assert house.changes()[:3] == [SessionChange.OPENED, SessionChange.LAPSED, SessionChange.OPENED]


def test_a_credential_that_policy_dropped_is_not_minted(state: State) -> None:
    """Nor one that the session was not granted."""
    session, _ = state.open_session(WANTED, "launcher")
    with pytest.raises(StateError):
        state.mint(session.id, "anthropic")
    state.swap_policies({})
    with pytest.raises(StateError) as caught:
        state.mint(session.id, "openai")
    assert caught.value.reason is Problem.UNKNOWN_CREDENTIAL


def test_sessions_and_handles_are_bounded(house: House) -> None:
    """At the limit newcomers are refused; closed sessions do not count, and are not kept for ever."""
    state = house.open(StateSettings(max_sessions=3, max_handles=4))
    for _ in range(10):
        for _ in range(3):
            state.open_session(WANTED, "launcher")
        with pytest.raises(StateError) as caught:
            state.open_session(WANTED, "launcher")
        assert caught.value.reason is Problem.CAPACITY
        for session in [s for s in state.sessions.by_id.values() if not s.revoked]:
            state.end(session.id, "launcher")
        assert len(state.sessions.by_id) == len(state.sessions.by_origin) == 3
    session, _ = state.open_session(WANTED, "launcher")
    for _ in range(3):
        state.mint(session.id, "openai")
    with pytest.raises(StateError) as caught:
        state.mint(session.id, "openai")
    assert caught.value.reason is Problem.CAPACITY


def test_sweep_forgets_what_is_long_over(house: House, state: State) -> None:
    """Memory and disk stay flat over days."""
    for _ in range(5):
        session, _ = state.open_session(replace(WANTED, credentials=None), "launcher")
        state.end(session.id, "launcher")
        house.time.passes(4_000)
        state.sweep()
    assert state.sessions.by_id == {} and state.sessions.by_origin == {}
    assert house.restart(state).sessions.by_id == {}


def test_a_callback_that_fails_does_not_shield_the_next(house: House, state: State) -> None:
    """One plane's bug is reported, and the other plane still hears of the revocation."""
    told: list[str] = []

    def broken(taken: Taken) -> None:
        raise RuntimeError("plane is gone")

    state.on_revoked(broken)
    state.on_revoked(lambda taken: told.extend(taken.sessions))
    session, _ = state.open_session(WANTED, "launcher")
    state.revoke(session.id, "operator")
    assert told == [session.id]
    assert any(isinstance(e, DaemonEvent) and "plane is gone" in e.detail for e in house.events)


def test_what_is_unknown_is_said_to_be(state: State) -> None:
    """Every call that names a session."""
    calls = (
        lambda: state.renew("ses_x", "a"),
        lambda: state.revoke("ses_x", "a"),
        lambda: state.end("ses_x", "a"),
        lambda: state.mint("ses_x", "openai"),
        lambda: state.status("ses_x"),
        lambda: state.handles("ses_x"),
    )
    for call in calls:
        with pytest.raises(StateError) as caught:
            call()
        assert caught.value.reason is Problem.UNKNOWN_SESSION


def test_issued_handles_are_listed_without_their_values(state: State) -> None:
    """For `session show`."""
    session, (handle,) = state.open_session(WANTED, "launcher")
    (issued,) = state.handles(session.id)
    assert issued.claims.jti == handle.jti and not issued.revoked
    state.revoke_handle(session.id, handle.jti)
    assert state.handles(session.id)[0].revoked
