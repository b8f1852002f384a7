"""Some hundred sessions at once; `python -m tests.bench.scale` takes 10,000, and says what they cost."""

import os

import pytest

from coatcheck.planes.listeners import listener
from tests.exhaustive.scale.conftest import House
from tests.system.e2e.story import until

SHARED, OWN = 180, 20
ASKING = 12


async def test_of_many_sessions_each_is_itself_and_all_are_gone_at_a_word(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is known by its own origin and no other; one that is revoked takes nobody along; revoking
    everything refuses all, and gives back their sockets and descriptors."""
    monkeypatch.setattr(listener, "ANSWERING_SECONDS", 0.5)
    state = house.daemon.state

    async def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = await descriptors()
    shared = [await house.member(number) for number in range(SHARED)]
    own = [await house.member(SHARED + number, own=True) for number in range(OWN)]
    asking = [*shared[:: SHARED // ASKING], *own[:: OWN // 4]]
    assert {await member.ask(house.context) for member in asking} == {"200"}
    assert await shared[0].ask(house.context, handle=own[0].handle) == "401 handle_stolen"

    for victim in (shared[0], own[0]):
        state.revoke(victim.id, "test")
    assert await shared[0].ask(house.context) == "ConnectionRefusedError"  # CONNECT was answered with 401
    await until(lambda: own[0].ask(house.context), "FileNotFoundError".__eq__)
    assert {await member.ask(house.context) for member in asking[1:-4]} == {"200"}
    assert await own[-1].ask(house.context) == "200"

    assert len(state.revoke_where(lambda session: True, None, "test")) == SHARED + OWN - 2
    for member in (*shared[::40], *own[::5]):
        assert await member.ask(house.context) in ("ConnectionRefusedError", "FileNotFoundError")
    sockets = house.daemon.settings.runtime / "sessions"
    await until(descriptors, lambda count: count <= before + 4)
    assert list(sockets.iterdir()) == []


async def test_a_credential_is_taken_from_all_of_them_at_once(house: House) -> None:
    """On requests that come after, whatever their connection; the sessions live."""
    members = [await house.member(number) for number in range(20)]
    assert len(house.daemon.state.revoke_where(lambda session: True, "openai", "test")) == 20
    assert {await member.ask(house.context) for member in members} == {"403 handle_out_of_scope"}
