"""Observe mode: what it lets pass, and all that it does not."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Destination, Edits, RequestHead
from coatcheck.decision.observation import Observation
from coatcheck.decision.observing import MAX_REQUEST_BYTES, METHODS, OBSERVED, observes
from coatcheck.decision.verdict import Pass
from coatcheck.policy import PolicyError, load_policy
from coatcheck.request.call import Call
from coatcheck.state.state import State
from coatcheck.telemetry.events import Outcome
from tests.known_secrets import known_secret
from tests.request.test_exchange import API, POLICY, World

FOR_EVER = b"observe: {reason: to learn what it needs, until: 2099-12-31}\n"
OVER = b"observe: {reason: to learn what it needs, until: 2020-12-31}\n"
ELSEWHERE = Destination("https", "new.example.net", 443)
ANY = RequestHead("GET", "/x?q=1", ())
WEBSOCKET = (
    ("connection", "upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
)


def observing(tmp_path: Path, words: bytes) -> World:
    state = State.open(tmp_path / "sessions", emit=lambda event: None)
    made = World(state, load_policy("default", POLICY + words), known_secret("the observed session's secret"))
    asyncio.run(made.exchange.secrets.learn(made.session))
    return made


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = observing(tmp_path, FOR_EVER)
    yield made
    made.state.close()


def asked(world: World, destination: Destination, head: RequestHead) -> Call:
    call, waiting = world.exchange.receive(world.peer(), destination, head, http2=False)
    assert waiting is None
    return call


def reason(call: Call) -> Reason | None:
    return call.denial.reason if call.denial is not None else None


def test_what_only_lacks_a_rule_passes_without_any_credential_and_is_recorded_so(world: World) -> None:
    """Another host, another path of a known host, another method; nothing is fetched, nothing put in."""
    known = RequestHead("GET", "/v2/other", ())
    for destination, head in ((ELSEWHERE, ANY), (API, known), (API, replace(known, method="DELETE"))):
        call = asked(world, destination, head)
        assert reason(call) is None and isinstance(call.verdict, Pass) and call.credentials == ()
        edits = call.commit(b"")
        assert isinstance(edits, Edits) and world.store.secret not in str(edits)
        call.complete(None)
    for decision in world.decisions():
        assert (decision.outcome, decision.rule, decision.credentials) == (Outcome.PASS, OBSERVED, ())


def test_a_handle_gets_nowhere_where_no_rule_allows_it(world: World) -> None:
    """As without observing: refused, with an alarm where it is not its credential's host."""
    head = RequestHead("GET", "/x", (("authorization", f"Bearer {world.handle}"),))
    elsewhere = asked(world, ELSEWHERE, head)
    assert reason(elsewhere) is Reason.HANDLE_WRONG_HOST and elsewhere.denial and elsewhere.denial.alarm
    assert reason(asked(world, API, replace(head, target="/v2/x"))) is Reason.PATH_NOT_ALLOWED
    assert (
        reason(asked(world, ELSEWHERE, replace(ANY, target=f"/{world.handle}"))) is Reason.HANDLE_WRONG_HOST
    )
    assert all(decision.outcome is Outcome.DENY for decision in world.decisions())


@pytest.mark.parametrize(
    ("destination", "head", "expected"),
    [
        (Destination("http", "new.example.net", 80), ANY, Reason.HOST_NOT_ALLOWED),
        (Destination("http", "new.example.net", 443), ANY, Reason.HOST_NOT_ALLOWED),
        (Destination("http", API.host, 80), ANY, Reason.PLAIN_HTTP_REFUSED),
        (Destination("https", "new.example.net", 8443), ANY, Reason.HOST_NOT_ALLOWED),
        (ELSEWHERE, replace(ANY, target="/../x"), Reason.HOST_NOT_ALLOWED),
        (ELSEWHERE, replace(ANY, target="/%2e%2e/x"), Reason.HOST_NOT_ALLOWED),
        (ELSEWHERE, replace(ANY, method="TRACE"), Reason.METHOD_NOT_ALLOWED),
        (ELSEWHERE, replace(ANY, method="PROPFIND"), Reason.HOST_NOT_ALLOWED),
        (ELSEWHERE, replace(ANY, headers=(("x-http-method-override", "TRACE"),)), Reason.HOST_NOT_ALLOWED),
        (ELSEWHERE, replace(ANY, headers=(("x-forwarded-host", API.host),)), Reason.HOST_NOT_ALLOWED),
        (ELSEWHERE, replace(ANY, headers=(("x-original-url", "/other"),)), Reason.HOST_NOT_ALLOWED),
        (ELSEWHERE, replace(ANY, headers=WEBSOCKET), Reason.HOST_NOT_ALLOWED),
        (API, replace(ANY, target="/v1//x"), Reason.PATH_FORM_REFUSED),
    ],
)
def test_everything_else_stays_refused(
    world: World, destination: Destination, head: RequestHead, expected: Reason
) -> None:
    """Plain HTTP, other ports, odd forms, headers that steer elsewhere, switched protocols."""
    assert reason(asked(world, destination, head)) is expected


def test_a_header_that_names_the_same_host_steers_nowhere(world: World) -> None:
    """As front ends set it on all that they pass on."""
    same = replace(ANY, headers=(("x-forwarded-host", ELSEWHERE.host),))
    assert reason(asked(world, ELSEWHERE, same)) is None


def test_connections_are_opened_for_it_and_only_with_tls_on_443(world: World) -> None:
    """Nothing passes unopened: each request inside is seen."""
    assert world.exchange.connect(world.peer(), "new.example.net", 443) is world.session
    refused = world.exchange.connect(world.peer(), "new.example.net", 22)
    assert isinstance(refused, Call) and reason(refused) is Reason.HOST_NOT_ALLOWED


def test_it_ends_on_its_day(tmp_path: Path) -> None:
    """Nobody has to remember to switch it off."""
    world = observing(tmp_path, OVER)
    assert reason(asked(world, ELSEWHERE, ANY)) is Reason.HOST_NOT_ALLOWED
    assert isinstance(world.exchange.connect(world.peer(), "new.example.net", 443), Call)
    world.state.close()


def test_it_is_over_when_its_day_begins() -> None:
    """To the second, as every end of a time here."""
    policy = load_policy("default", POLICY + FOR_EVER)
    assert policy.observe is not None
    denial, end = Deny(Reason.HOST_NOT_ALLOWED, "no rule"), policy.observe.until
    assert observes(policy, denial, "https", 443, end - 1) and not observes(policy, denial, "https", 443, end)
    assert not observes(policy, replace(denial, alarm=True), "https", 443, end - 1), "nor what alarms"


def test_a_session_on_another_policy_is_not_observed(tmp_path: Path) -> None:
    """It is a matter of one policy, which its session was opened under by a caller whose grant names it."""
    world = observing(tmp_path, b"")
    world.state.swap_policies({**world.state.policies, "other": load_policy("other", POLICY + FOR_EVER)})
    assert reason(asked(world, ELSEWHERE, ANY)) is Reason.HOST_NOT_ALLOWED
    world.state.close()


def test_what_passed_ends_when_the_policy_no_longer_observes(world: World) -> None:
    """A running request is looked at again, as after every change; one that a rule allows now goes on."""
    call = asked(world, ELSEWHERE, ANY)
    assert isinstance(call.commit(b""), Edits) and call.permitted() is None
    same = load_policy("default", POLICY + FOR_EVER + b"# more\n")
    world.state.swap_policies({"default": same})
    assert call.permitted() is None
    world.state.swap_policies({"default": load_policy("default", POLICY)})
    ended = call.permitted()
    assert isinstance(ended, Deny) and ended.reason is Reason.HOST_NOT_ALLOWED


def test_uploads_and_requests_are_bounded(world: World) -> None:
    """A session that is observed can still carry away only so much, and so often."""
    call = asked(world, ELSEWHERE, replace(ANY, method="POST"))
    assert call.rule is not None and call.rule.max_request_bytes == MAX_REQUEST_BYTES
    call.complete(None)
    for _ in range(3000):  # 600 at once, and ten more a second
        call = asked(world, ELSEWHERE, ANY)
        call.complete(None)
        if call.denial is not None:
            break
    assert reason(call) is Reason.RATE_LIMITED


def test_a_file_says_why_and_until_when() -> None:
    """And no rule can take the name under which it is recorded."""
    policy = load_policy("default", POLICY + FOR_EVER)
    assert policy.observe == Observation(
        "to learn what it needs", policy.observe.until if policy.observe else 0
    )
    for wrong in (b"observe: true\n", b"observe: {reason: x}\n", b"observe: {until: 2099-12-31}\n"):
        with pytest.raises(PolicyError):
            load_policy("default", POLICY + wrong)
    with pytest.raises(PolicyError, match="write another name"):
        load_policy("default", POLICY.replace(b"name: forms", b'name: "(observed)"'))
    assert "CONNECT" not in METHODS and "TRACE" not in METHODS
