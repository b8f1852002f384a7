"""A forked session's requests, with the strings that its processes hold from before."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from coatcheck.decision.denial import Reason
from coatcheck.decision.handle import Claims
from coatcheck.decision.message import Edits, Peer
from coatcheck.decision.session import Now, Session
from coatcheck.decision.verdict import Inject, Injection
from coatcheck.policy import load_policy
from coatcheck.request.handle_use import ancestor_shown, counts, counts_until, foreign, one_revoked
from coatcheck.state.sessions import NewSession
from coatcheck.state.state import State
from tests.known_secrets import known_secret
from tests.request.test_exchange import POLICY, World, why


@dataclass
class Family:
    """A parent, which is `world.session`, and a fork of it."""

    world: World
    child: Session
    own: str
    """The child's own handle; `world.handle` is its parent's."""

    @property
    def peer(self) -> Peer:
        return Peer("fork", (self.child.origin,))


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    state = State.open(tmp_path / "sessions", emit=lambda event: None)
    world = World(state, load_policy("default", POLICY), known_secret("the fork's secret"))
    child, minted = state.open_session(
        NewSession("acme", "agent", "default", parent=world.session.id), "test"
    )
    yield Family(world, child, next(each.value for each in minted if each.credential == "api"))
    state.close()


async def test_an_inherited_string_is_the_forks_request_and_the_record_says_whose_it_was(
    family: Family,
) -> None:
    """Attributed to the fork; `handle_of` names the session that the string was made for."""
    call = await family.world.ask(peer=family.peer)
    assert isinstance(call.commit(b""), Edits)
    told = family.world.decisions()[-1]
    assert (told.session, told.handle_of) == (family.child.id, family.world.session.id)
    await family.world.ask(handle=family.own, peer=family.peer)
    assert family.world.decisions()[-1].handle_of == ""


async def test_revoking_the_inherited_string_cuts_what_it_began(family: Family) -> None:
    """Also in the fork, and also while a body streams."""
    world = family.world
    call = await world.ask(peer=family.peer, body=True)
    assert isinstance(call.commit(b""), Edits)
    assert call.upload(b"first") == b"first"
    for handle in world.state.handles(world.session.id):
        world.state.revoke_handle(world.session.id, handle.claims.jti)
    assert why(call.upload(b"second")) is Reason.HANDLE_REVOKED


async def test_the_parents_end_does_not_touch_the_fork(family: Family) -> None:
    """A stream goes on, and so do new requests with the same string."""
    world = family.world
    call = await world.ask(peer=family.peer, body=True)
    assert isinstance(call.commit(b""), Edits)
    world.state.revoke(world.session.id, "operator")
    assert call.upload(b"more") == b"more"
    assert (await world.ask(peer=family.peer)).denial is None
    assert why((await world.ask()).denial) is Reason.SESSION_REVOKED


async def test_an_inherited_string_beside_a_stolen_one_is_no_theft_from_its_ancestor(family: Family) -> None:
    """The victim is whom the other string belongs to."""
    world = family.world
    call = await world.ask(peer=family.peer)
    assert foreign(call.session, call.head, world.exchange.context()) == ()
    call = await world.ask(handle=family.own)
    assert why(call.denial) is Reason.HANDLE_STOLEN
    assert [each.sid for each in foreign(call.session, call.head, world.exchange.context())] == [
        family.child.id
    ]


async def test_only_a_sessions_own_handles_end_by_themselves(family: Family) -> None:
    """An ancestor's string has no end of its own in a fork; what can no longer be read says nothing."""
    world = family.world
    known, by_id = world.state.genuine, world.state.sessions.by_id
    call = await world.ask(peer=family.peer)
    assert isinstance(call.verdict, Inject)
    assert counts_until(call.session, call.verdict, known) == math.inf
    assert ancestor_shown(call.session, call.verdict, known) == world.session.id
    assert not one_revoked(family.child, call.verdict, known, by_id)
    own = await world.ask(handle=family.own, peer=family.peer)
    assert isinstance(own.verdict, Inject)
    assert counts_until(own.session, own.verdict, known) == int(family.child.expires_at)
    unread = replace(own.verdict, injections=(Injection(own.verdict.injections[0].credential, "cch_eyJx"),))
    assert counts_until(own.session, unread, known) is None


async def test_a_handle_counts_in_its_own_session_until_it_expires_or_its_credential_is_taken_away(
    family: Family,
) -> None:
    """What `revoke_on_theft` asks before it ends a session."""
    world = family.world
    claims = world.state.genuine.claims_of(world.handle)
    context = world.exchange.context()
    credential = context.policies["default"].credentials["api"]
    assert isinstance(claims, Claims)
    assert counts(claims, world.session, credential, context)
    assert not counts(claims, replace(world.session, credentials=frozenset()), credential, context)
    late = replace(context, now=Now(claims.expires_at, context.now.monotonic))
    assert not counts(claims, world.session, credential, late)
