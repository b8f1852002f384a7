"""Which secrets a tenant's answers are searched for."""

from hashlib import sha256

import pytest

from coatcheck.decision.policy import SecretRef
from coatcheck.decision.scrub import Run, scrub_bytes
from coatcheck.policy import load_policy
from coatcheck.request import known_secrets
from coatcheck.request.known_secrets import KnownSecrets, TooManySecrets, texts_of
from coatcheck.secrets import SecretUnavailable
from coatcheck.state.sessions import NewSession
from tests.known_secrets import known_secret
from tests.request.known_world import NEW, OLD, ONE, OTHER, World
from tests.request.known_world import world as world


async def test_all_that_the_policy_could_put_in_is_looked_for_before_anything_was_used(world: World) -> None:
    """Also by a session that was granted nothing, and the value from before a rotation (I1)."""
    bare = world.state.open_session(NewSession("acme", "agent", "one", credentials=frozenset()), "test")[0]
    assert not world.known.ready(bare)
    await world.known.learn(bare)
    assert world.known.ready(bare)
    assert world.masked(bare, f"{OLD} {NEW} {OTHER}") == f"{'*' * len(OLD)} {'*' * len(NEW)} {OTHER}"


async def test_what_a_tenants_other_sessions_use_is_looked_for_in_all_of_them(world: World) -> None:
    """An upstream may show one client's requests to another; a session that ended was served, too."""
    other = world.open(policy="two")
    world.state.end(other.id, "test")
    session = await world.learned(world.open())
    assert world.masked(session, OTHER) == "*" * len(OTHER)


async def test_another_tenants_secrets_are_not_looked_for(world: World) -> None:
    """Masking them would tell this one what they are."""
    await world.learned(world.open("rival", "two"))
    session = await world.learned(world.open())
    assert world.masked(session, OTHER) == OTHER


async def test_a_child_is_searched_like_its_parent(world: World) -> None:
    """A fork's first answer shows what its parent was served."""
    parent = await world.learned(world.open())
    world.shelf.versions["one"] = [NEW]  # the store has dropped what was served
    world.state.end(parent.id, "test")
    assert world.masked(world.open(parent=parent.id), OLD) == "*" * len(OLD)


async def test_nothing_is_known_while_the_store_does_not_answer(world: World) -> None:
    """Then nobody is answered; what was not there yet is read once it can be."""
    session = world.open()
    world.shelf.failing = True
    for _ in range(2):
        with pytest.raises(SecretUnavailable, match="sealed"):
            await world.known.learn(session)
        assert not world.known.ready(session)
    world.shelf.failing = False
    with pytest.raises(SecretUnavailable):  # not with every request
        await world.known.learn(session)
    world.clock.advance(known_secrets.RETRY_SECONDS + 5)
    await world.known.learn(session)
    assert world.known.ready(session)


async def test_a_store_that_fails_later_keeps_nobody_waiting(world: World) -> None:
    """What is known is searched for; only what the daemon never read is missing."""
    session = await world.learned(world.open())
    world.shelf.failing = True
    world.clock.advance(1000)
    assert world.known.ready(session)
    assert world.masked(session, OLD) == "*" * len(OLD)


async def test_a_secret_that_the_store_does_not_have_keeps_nobody_waiting(world: World) -> None:
    """A policy may name what is not there yet. What was deleted may have been served before."""
    world.shelf.versions = {"two": [OTHER]}
    session = await world.learned(world.open())
    assert world.known.patterns(session) is None


async def test_a_secret_that_the_daemon_may_not_read_keeps_nobody_waiting(world: World) -> None:
    """A policy may name more than one user's Vault allows. Once it is allowed, all its versions are read
    before the next request leaves."""
    world.shelf.denied = {"one"}
    session = await world.learned(world.open())
    assert world.known.ready(session)
    assert world.known.patterns(session) is None
    world.shelf.denied = set()
    world.clock.advance(5)
    await world.store.fetch(SecretRef("memory", "secret", "one", "key"))
    assert not world.known.ready(session)
    await world.learned(session)
    assert world.masked(session, f"{OLD} {NEW}") == f"{'*' * len(OLD)} {'*' * len(NEW)}"


async def test_what_was_read_before_a_denial_is_still_looked_for(world: World) -> None:
    """It may have been served."""
    session = await world.learned(world.open())
    world.shelf.denied = {"one"}
    world.clock.advance(60)
    await world.settled(session)
    assert world.known.ready(session)
    assert world.masked(session, OLD) == "*" * len(OLD)


async def test_a_rotation_is_seen_in_time_and_once(world: World) -> None:
    """Also by those who use nothing; the values between two readings are read as well, and no older ones."""
    session = await world.learned(world.open())
    assert world.shelf.asked == [("one", ())]
    world.shelf.versions["one"] += [known_secret("known between"), known_secret("known newest")]
    world.clock.advance(61)
    await world.settled(session)
    both = "".join(world.shelf.versions["one"][2:])
    assert world.masked(session, both) == "*" * len(both)
    assert world.shelf.asked[1:] == [("one", ("1", "2"))]


async def test_a_value_is_looked_for_as_soon_as_it_was_read(world: World) -> None:
    """The request that injects it is the first that could show it."""
    session = await world.learned(world.open())
    world.shelf.versions["one"].append(OTHER)
    ref = world.state.policies["one"].credentials["one"].secret
    world.clock.advance(61)
    await world.store.fetch(ref)
    assert world.masked(session, f"{OLD}{OTHER}") == "*" * len(OLD + OTHER)
    await world.settled(session)
    assert world.masked(session, f"{OLD}{OTHER}") == "*" * len(OLD + OTHER)


async def test_a_policy_that_gains_a_credential_is_read_before_the_next_request(world: World) -> None:
    """One that loses one goes on being searched for it."""
    session = await world.learned(world.open())
    two = load_policy("one", ONE.format(name="two").encode())
    world.state.swap_policies({"one": two})
    assert not world.known.ready(session)
    await world.known.learn(session)
    assert world.masked(session, OLD + OTHER) == "*" * len(OLD + OTHER)


async def test_a_policy_that_is_read_again_keeps_nobody_waiting(world: World) -> None:
    """A reload changes nothing about its secrets."""
    session = await world.learned(world.open())
    world.state.swap_policies({"one": load_policy("one", ONE.format(name="one").encode() + b"\n")})
    assert world.known.ready(session)


async def test_only_what_is_known_may_be_injected(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays flat (I9), and not at the price of a secret that is no longer looked for (I1)."""
    session = await world.learned(world.open())
    credential = world.state.policies["one"].credentials["one"]
    assert world.known.covers(session, texts_of(credential, [OLD, NEW]))
    assert not world.known.covers(session, texts_of(credential, [OTHER]))
    monkeypatch.setattr(KnownSecrets, "KEPT", 1)
    assert not world.known.covers(session, texts_of(credential, [NEW]))
    world.open("rival")
    with pytest.raises(TooManySecrets, match="have 2 values"):
        await world.known.learn(world.open("rival"))


async def test_tenants_without_sessions_are_forgotten_when_there_are_too_many(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who live are not."""
    monkeypatch.setattr(KnownSecrets, "TENANTS", 1)
    first = await world.learned(world.open("acme"))
    gone = await world.learned(world.open("gone", "two"))
    world.state.end(gone.id, "test")
    world.state.sweep()
    await world.learned(world.open("third"))
    assert world.known.texts("gone") == frozenset() != world.known.texts("third")
    assert world.masked(first, OLD) == "*" * len(OLD)


async def test_the_latest_signatures_are_looked_for_in_every_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the secrets, in one session, and so many: a sandbox can have any number made (I9)."""
    monkeypatch.setattr(KnownSecrets, "MINTED", 2)
    made = [sha256(bytes([n])).hexdigest() for n in range(3)]
    session, other = await world.learned(world.open()), world.open()
    world.known.add_minted(session.id, made[0])
    world.known.add_minted(session.id, made[1])
    assert world.masked(other, made[0]) == made[0]
    assert world.masked(session, f"{OLD} {made[0]} {made[1]}").strip("* ") == ""
    own = world.known.add_minted(session.id, made[2])
    seen = world.masked(session, f"{made[0]} {made[1]} {made[2]}").split(" ")
    assert seen == [made[0], "*" * 64, "*" * 64]
    assert world.known.add_minted(session.id, made[2]) is own, "the same request again costs nothing"
    world.known.forget(session.id)
    assert world.masked(session, made[2] + OLD) == made[2] + "*" * len(OLD)


async def test_tenants_with_the_same_secrets_share_what_is_compiled(world: World) -> None:
    """A thousand tenants with one key take the memory of one; a run is told by its secret's reference."""
    one, other = [await world.learned(world.open(tenant)) for tenant in ("acme", "rival")]
    patterns = world.known.patterns(one)
    assert patterns is world.known.patterns(other)
    assert patterns is not None
    assert scrub_bytes(patterns, OLD.encode())[1] == (
        Run("memory:secret/one#key", len(OLD) - len("sk-test-"), True),
    )
