"""A request at a daemon of a fleet: it may wait for the fleet's word on a limit, and for nothing else.

No database here: what `SharedLimits` may do to a request is done by hand, also what it never does.
"""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from coatcheck.decision.comparison import Comparison
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import RequestHead
from coatcheck.decision.policy import Limit
from coatcheck.decision.ratelimit import BucketKey
from coatcheck.decision.session import Session
from coatcheck.policy import load_policy
from coatcheck.policy.shadow import Shadow
from coatcheck.request.call import Call
from coatcheck.state.buckets import ShareAwaited
from coatcheck.state.replication_health import ReplicationHealth
from coatcheck.telemetry.events import Decision, Outcome
from tests.request.test_exchange import API, POLICY, World, why, world

__all__ = ["world"]

type Keys = Iterable[tuple[Limit, BucketKey]]


class Fleet:
    """`state.buckets.Shares`: each request waits once, and then gets `word`."""

    def __init__(self, word: Callable[[], object] = lambda: None) -> None:
        self.word = word
        self.asked = asyncio.get_running_loop().create_future()
        self.running = 0

    def shares(self, limit: Limit, session: Session) -> bool:
        return True

    def admit(self, keys: Keys, now: float) -> Deny | ShareAwaited | None:
        if not self.asked.done():
            return ShareAwaited(self.asked)
        return self.word()  # type: ignore[return-value]  # also what the types forbid

    def began(self, keys: Keys, now: float) -> None:
        self.running += 1

    def ended(self, keys: Keys) -> None:
        self.running -= 1

    def passed(self, limit: Limit, key: BucketKey, count: int, now: float) -> Deny | None:
        return None

    def used(self) -> tuple[dict[BucketKey, float], dict[BucketKey, int]]:
        return {}, {}


def fail() -> object:
    raise RuntimeError("a bug")


async def begun(world: World, fleet: Fleet) -> tuple[Call, asyncio.Task[None]]:
    """A request that waits for the fleet."""
    world.exchange.buckets.shares = fleet
    head = RequestHead("GET", "/v1/x", (("authorization", f"Bearer {world.handle}"),))
    call, waiting = world.exchange.receive(world.peer(), API, head, http2=False)
    assert waiting is not None
    task = asyncio.ensure_future(waiting())
    await asyncio.sleep(0)
    return call, task


def nothing_is_left(world: World, fleet: Fleet, call: Call) -> bool:
    """Neither a place, nor one of those that may run at once, here and in the fleet."""
    call.complete(None)
    return (len(world.exchange.calls), world.exchange.buckets.used()[1], fleet.running) == (0, {}, 0)


async def test_the_fleets_yes_lets_a_request_go_and_its_end_gives_back_what_it_took(world: World) -> None:
    """Once: neither less nor more."""
    fleet = Fleet()
    call, waiting = await begun(world, fleet)
    fleet.asked.set_result(None)
    await waiting
    assert call.denial is None
    assert fleet.running == 1
    assert nothing_is_left(world, fleet, call)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (lambda: Deny(Reason.CONCURRENCY_LIMITED), Reason.CONCURRENCY_LIMITED),
        (fail, Reason.INTERNAL_ERROR),
        (lambda: "yes", Reason.INTERNAL_ERROR),
    ],
    ids=["no", "it fails", "nonsense"],
)
async def test_whatever_the_fleet_says_but_yes_refuses(
    world: World, word: Callable[[], object], reason: Reason
) -> None:
    """No secret is given out for it, and the refusal is recorded."""
    fleet = Fleet(word)
    call, waiting = await begun(world, fleet)
    fleet.asked.set_result(None)
    await waiting
    assert why(call.denial) is reason
    assert why(call.commit(b"")) is reason
    assert [each.outcome for each in world.decisions()] == [Outcome.DENY]
    assert nothing_is_left(world, fleet, call)


async def test_a_fleet_that_cannot_be_asked_refuses(world: World) -> None:
    """What is waited for fails, in place of an answer."""
    fleet = Fleet()
    call, waiting = await begun(world, fleet)
    fleet.asked.set_exception(RuntimeError("a bug"))
    await waiting
    assert why(call.denial) is Reason.INTERNAL_ERROR
    assert nothing_is_left(world, fleet, call)


async def test_a_fleet_that_says_nothing_refuses_in_time(world: World) -> None:
    """A second, by default."""
    fleet = Fleet()
    call, waiting = await begun(world, fleet)
    async with asyncio.timeout(20):
        await waiting
    assert why(call.denial) is Reason.RATE_LIMITED
    assert nothing_is_left(world, fleet, call)


async def test_a_client_that_leaves_while_the_fleet_is_asked_is_recorded_and_takes_nothing(
    world: World,
) -> None:
    """Else a sandbox used up its tenant's limit without a trace, and held a place for ever."""
    fleet = Fleet()
    call, waiting = await begun(world, fleet)
    call.complete(Reason.CLIENT_GONE)
    fleet.asked.set_result(None)
    await waiting
    assert why(call.denial) is Reason.CLIENT_GONE
    assert [each.reason for each in world.decisions()] == [Reason.CLIENT_GONE]
    assert nothing_is_left(world, fleet, call)


async def test_a_session_that_is_revoked_while_the_fleet_is_asked_gets_no_secret(world: World) -> None:
    """The last look comes after every wait (I5)."""
    fleet = Fleet()
    call, waiting = await begun(world, fleet)
    world.state.revoke(world.session.id, "test")
    fleet.asked.set_result(None)
    await waiting
    assert why(call.commit(b"")) is Reason.SESSION_REVOKED
    assert nothing_is_left(world, fleet, call)


TUNNEL = b"""
version: 1
owner: tests
rules:
  - name: pinned
    hosts: [api.example.org]
    ports: [443]
    tunnel: true
    max_request: 1MiB
    limits: {concurrent: 2}
"""


async def test_a_tunnel_waits_for_no_fleet_and_is_refused_with_what_to_do(world: World) -> None:
    """CONNECT is answered at once; the fleet has been asked, so that the next one knows."""
    world.state.swap_policies({"default": load_policy("default", TUNNEL)})
    fleet = world.exchange.buckets.shares = Fleet()
    call = world.exchange.connect(world.peer(), "api.example.org", 443)
    assert isinstance(call, Call)
    assert why(call.denial) is Reason.RATE_LIMITED
    assert call.denial is not None
    assert call.denial.retry_after is not None
    assert nothing_is_left(world, fleet, call)
    fleet.asked.set_result(None)
    allowed = world.exchange.connect(world.peer(), "api.example.org", 443)
    assert isinstance(allowed, Call)
    assert allowed.commit_tunnel() is None
    assert nothing_is_left(world, fleet, allowed)


# --- a daemon that does not hear what others revoke ---------------------------------------------------------


def grow_stale(world: World) -> None:
    world.state.hearing = ReplicationHealth(1.0)


async def test_a_deaf_daemon_begins_nothing_and_says_whose_it_was(world: World) -> None:
    """Neither a request nor a tunnel, nor one whose body was awaited."""
    body = RequestHead("POST", "/form", (("content-type", "application/json"),), end_stream=False)
    half, _ = world.exchange.receive(world.peer(), API, body, http2=False)
    assert half.denial is None
    grow_stale(world)
    told = [
        (await world.ask()).denial,
        getattr(world.exchange.connect(world.peer(), API.host, API.port), "denial", None),
    ]
    assert [why(denial) for denial in told] == [Reason.SHARED_STATE_SILENT] * 2
    recorded: list[Decision] = world.decisions()[-2:]
    assert [each.session for each in recorded] == [world.session.id] * 2
    text = b'{"token": "' + world.state.mint(world.session.id, "form").value.encode() + b'"}'
    waiting = world.exchange.receive_body(half, text)
    assert waiting is None
    assert why(half.commit(text)) is Reason.SHARED_STATE_SILENT


async def test_what_runs_ends_at_the_next_byte_of_a_deaf_daemon(world: World) -> None:
    """In both directions, and without a clean end (I3)."""
    before = await world.ask()
    running = await world.ask(body=True)
    running.commit(b"")
    grow_stale(world)
    assert why(before.commit(b"")) is Reason.SHARED_STATE_SILENT
    assert why(running.upload(b"x")) is Reason.SHARED_STATE_SILENT
    assert why(running.upload_end()) is Reason.SHARED_STATE_SILENT
    assert why(running.download(b"x")) is Reason.SHARED_STATE_SILENT
    assert why(running.download_end()) is Reason.SHARED_STATE_SILENT


async def test_a_deaf_daemons_refusals_are_no_differences_of_a_candidate(
    world: World, tmp_path: Path
) -> None:
    """Else shadow mode said that every request would be let through: the candidate has no part in it."""
    compared: list[Comparison] = []
    (tmp_path / "default.yaml").write_bytes(POLICY + b"    max_request: 1MiB\n")
    shadow = Shadow(tmp_path / "default.yaml", None, lambda event: None, compared.append)
    shadow.look()
    world.exchange.shadow = shadow
    world.exchange.connect(world.peer(), API.host, API.port)
    assert compared == [Comparison.SAME]
    grow_stale(world)
    await world.ask()
    world.exchange.connect(world.peer(), API.host, API.port)
    assert compared == [Comparison.SAME]
