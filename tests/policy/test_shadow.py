"""Candidates beside the policy in force: everything is compared, and nothing changes."""

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from coatcheck.decision.comparison import Comparison
from coatcheck.decision.decide import decide
from coatcheck.decision.denial import Reason
from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.policy import SecretRef
from coatcheck.policy import load_policy
from coatcheck.policy import shadow as module
from coatcheck.policy.shadow import BURST, EVERY_SECONDS, MAX_KINDS, Shadow
from coatcheck.secrets import Secret
from coatcheck.state.state import State
from coatcheck.telemetry.audit.log import AuditUnavailable
from coatcheck.telemetry.events import Alarm, DaemonEvent, Event, ShadowDifference
from tests.known_secrets import known_secret
from tests.policy.bundle.bundles import put
from tests.request.test_exchange import API, POLICY, World

NARROW = POLICY.replace(b"paths: [/v1/**]", b"paths: [/v1/x]").replace(
    b"[api.example.org]\n    methods: [GET, POST]", b"[api.example.org]\n    methods: [GET]"
)
WIDE = POLICY + b"  - name: more\n    hosts: [more.example.org]\n    methods: [GET]\n"
OTHER_SECRET = POLICY.replace(b"memory:secret/api#key", b"memory:secret/admin#key")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    state = State.open(tmp_path / "sessions", emit=lambda event: None)
    made = World(state, load_policy("default", POLICY), known_secret("the shadow's secret"))
    await made.exchange.secrets.learn(made.session)
    yield made
    state.close()


class Compared:
    """A shadow on a file, and what it told and counted."""

    def __init__(self, world: World, place: Path, candidate: bytes, name: str = "default.yaml") -> None:
        self.told: list[Event] = []
        self.tell: Callable[[Event], None]
        self.counted: list[Comparison] = []
        self.file = put(place / name, candidate)
        self.tell = self.told.append
        self.shadow = Shadow(self.file, None, lambda event: self.tell(event), self.counted.append)
        self.shadow.look()
        world.exchange.shadow = self.shadow

    def differences(self) -> list[ShadowDifference]:
        return [event for event in self.told if isinstance(event, ShadowDifference)]


async def test_each_difference_is_counted_and_told_and_nothing_changes(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict is that of the policy in force, limits are spent once, and no other secret is fetched."""
    fetched: list[str] = []
    peek = world.store.peek

    def seen(ref: SecretRef) -> Secret | None:
        fetched.append(str(ref))
        return peek(ref)

    monkeypatch.setattr(world.store, "peek", seen)
    compared = Compared(world, tmp_path, NARROW)
    call = await world.ask("/v1/y")
    assert call.denial is None
    call.complete(None)
    assert compared.counted == [Comparison.REFUSES]
    (difference,) = compared.differences()
    assert (difference.active, difference.candidate) == (
        "allowed, rule calls, with api",
        "refused, path_not_allowed, rule calls",
    )
    assert (difference.method, difference.destination, difference.path) == ("GET", API.url, "/v1/y")
    compared = Compared(world, tmp_path, OTHER_SECRET)
    (await world.ask("/v1/y")).complete(None)
    assert compared.counted == [Comparison.CREDENTIALS]
    assert fetched == ["memory:secret/api#key"] * 2
    (await world.ask("/v1/y")).complete(None)
    assert (await world.ask("/v1/y")).denial is not None  # the burst of 3 was spent by three requests
    assert len(compared.counted) == 3


async def test_what_a_candidate_would_allow_stays_refused(world: World, tmp_path: Path) -> None:
    """Also for CONNECT, before a name is resolved."""
    compared = Compared(world, tmp_path, WIDE)
    host = Destination("https", "more.example.org", 443)
    refused = world.exchange.connect(world.peer(), host.host, 443)
    assert getattr(refused, "denial", None) is not None
    call, _ = world.exchange.receive(world.peer(), host, RequestHead("GET", "/", ()), http2=False)
    assert call.denial is not None and call.denial.reason is Reason.HOST_NOT_ALLOWED
    assert compared.counted == [Comparison.ALLOWS] * 2
    assert [each.method for each in compared.differences()] == ["CONNECT", "GET"]
    assert world.exchange.connect(world.peer(), API.host, 443) is world.session
    assert compared.counted[-1] is Comparison.SAME


async def test_a_handle_in_a_path_does_not_get_into_the_record(world: World, tmp_path: Path) -> None:
    """As in every record; and what alarms, alarms once."""
    compared = Compared(world, tmp_path, NARROW)
    await world.ask(f"/v1/{world.handle}", handle="")
    assert world.handle not in str(compared.told) and len(world.told) > 1
    assert sum(isinstance(event, Alarm) for event in world.told) == 1


async def test_a_candidate_that_fails_touches_no_request(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it raises, in judging or in telling; logged once, counted each time."""
    compared = Compared(world, tmp_path, NARROW)
    with monkeypatch.context() as patch:
        patch.setattr(module, "decide", lambda *_: 1 / 0)
        patch.setattr(module, "decide_connect", lambda *_: int("no"))
        for _ in range(2):
            call = await world.ask("/v1/x")
            assert call.denial is None
            call.complete(None)
        assert world.exchange.connect(world.peer(), API.host, 443) is world.session
    assert compared.counted == [Comparison.FAILED] * 3
    assert caplog.text.count("came to no verdict") == 1

    def full(event: Event) -> None:
        raise AuditUnavailable("disk full")

    compared.tell = full
    assert (await world.ask("/v1/y")).denial is None
    assert compared.counted[-1] is Comparison.FAILED


async def test_a_policy_that_stays_the_same_costs_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known by its hash; nothing is judged twice."""
    compared = Compared(world, tmp_path, POLICY)
    monkeypatch.setattr(module, "decide", lambda *_: 1 / 0)
    await world.ask("/v1/x")
    assert compared.counted == [Comparison.SAME]


async def test_a_file_speaks_for_its_own_policy_and_a_directory_for_all(world: World, tmp_path: Path) -> None:
    """A policy that is missing in a directory would be gone: its sessions would be refused."""
    compared = Compared(world, tmp_path, POLICY, "other.yaml")
    await world.ask("/v1/x")
    assert compared.counted == []
    (tmp_path / "policies").mkdir(mode=0o755)
    put(tmp_path / "policies/other.yaml", POLICY)
    shadow = Shadow(tmp_path / "policies", None, compared.told.append, compared.counted.append)
    shadow.look()
    world.exchange.shadow = shadow
    await world.ask("/v1/x")
    assert compared.counted == [Comparison.REFUSES]
    assert compared.differences()[0].candidate == "refused, policy_missing"
    assert compared.differences()[0].candidate_hash == ""


async def test_records_are_bounded_and_counts_are_not(world: World, tmp_path: Path) -> None:
    """A hundred of a kind, then one in five seconds, which says how many there were in between."""
    compared = Compared(world, tmp_path, WIDE)
    host = Destination("https", "more.example.org", 443)
    for _ in range(BURST + 50):
        world.exchange.receive(world.peer(), host, RequestHead("GET", "/", ()), http2=False)
    assert len(compared.counted) == BURST + 50 and len(compared.differences()) == BURST
    clock = world.state.clock
    clock.raise_to(clock.now().wall + 2 * EVERY_SECONDS)
    world.exchange.receive(world.peer(), host, RequestHead("GET", "/", ()), http2=False)
    assert compared.differences()[-1].unrecorded == 50


def test_what_is_remembered_of_differences_is_bounded(world: World, tmp_path: Path) -> None:
    """Kinds above the bound share one budget."""
    shadow = Compared(world, tmp_path, WIDE).shadow
    for number in range(2 * MAX_KINDS):
        shadow.budget(("default", Comparison.RULE, f"{number}", ""), 0.0)
    assert len(shadow.budgets) <= MAX_KINDS + 1


async def test_a_bad_candidate_is_told_once_and_the_last_good_one_goes_on(
    world: World, tmp_path: Path
) -> None:
    """A daemon starts with it, too: it changes nothing."""
    compared = Compared(world, tmp_path, b"rules: none\n")
    assert compared.shadow.candidates is None and "rules" in compared.shadow.refused
    await world.ask("/v1/x")
    assert compared.counted == []
    put(compared.file, NARROW)
    for _ in range(3):
        compared.shadow.look()
    assert compared.shadow.refused == ""
    put(compared.file, b"rules: none\n")
    for _ in range(3):
        compared.shadow.look()
    await world.ask("/v1/y")
    assert compared.counted == [Comparison.REFUSES]
    told = [event.what for event in compared.told if isinstance(event, DaemonEvent)]
    assert told == ["shadow_refused", "shadow", "shadow_refused"]


async def test_candidates_that_were_taken_away_are_compared_no_longer(world: World, tmp_path: Path) -> None:
    """Such as one that was renamed into force; a place where none are yet is no fault."""
    compared = Compared(world, tmp_path, NARROW)
    compared.file.unlink()
    for _ in range(3):
        compared.shadow.look()
    await world.ask("/v1/y")
    assert (compared.shadow.candidates, compared.shadow.refused, compared.counted) == (None, "", [])
    put(compared.file, NARROW)
    for _ in range(3):
        compared.shadow.look()
    await world.ask("/v1/y")
    assert compared.shadow.results[Comparison.REFUSES] == len(compared.counted) == 1
    told = [event.detail for event in compared.told if isinstance(event, DaemonEvent)]
    assert [detail.startswith("no candidates at ") for detail in told] == [False, True, False]


async def test_a_request_pays_little_for_its_shadow(world: World, tmp_path: Path) -> None:
    """One more verdict: some ten microseconds here. The bound is for a slow machine under load."""
    compared = Compared(world, tmp_path, NARROW)
    head = RequestHead("GET", "/v1/x", (("authorization", f"Bearer {world.handle}"),))
    exchange, peer = world.exchange, world.peer()
    judged = exchange.context()
    verdict = decide(peer, API, head, judged)
    began = time.perf_counter()
    for _ in range(500):
        compared.shadow.request(peer, API, head, judged, verdict)
    each = (time.perf_counter() - began) / 500
    assert compared.counted == [Comparison.SAME] * 500
    assert each < 0.005, each
