"""Four words stand for what becomes of a sandbox; each part can be said, and what contradicts is refused."""

from dataclasses import replace

import pytest

from coatcheck.durable.durability import Durability, Lifecycle
from coatcheck.durable.lifecycle import Contradiction, LifecycleRequest, Recover, settle

KEPT = Durability(recovers=True, every_seconds=3600.0, rotates=True)
EPHEMERAL, LONG, HYBRID, SHARED = Lifecycle


@pytest.mark.parametrize(
    ("lifecycle", "keeping", "idle_seconds", "runs_long"),
    [
        (None, Durability(), None, False),
        (EPHEMERAL, Durability(), 60.0, False),
        (LONG, KEPT, None, True),
        (HYBRID, replace(KEPT, sleeps=True), 300.0, True),
        (SHARED, KEPT, None, True),
    ],
)
def test_what_each_word_stands_for(
    lifecycle: Lifecycle | None, keeping: Durability, idle_seconds: float | None, runs_long: bool
) -> None:
    """Nothing of it holds where nobody said a word."""
    settled = settle(LifecycleRequest(lifecycle, identities=2))
    assert settled.keeping == replace(keeping, lifecycle=lifecycle)
    assert (settled.idle_seconds, settled.runs_long) == (idle_seconds, runs_long)
    assert settled.keeping.shares is (lifecycle is SHARED)


@pytest.mark.parametrize("lifecycle", [LONG, HYBRID, SHARED])
def test_what_is_said_beside_the_word_holds(lifecycle: Lifecycle) -> None:
    """Also that nothing is to be saved; then nothing is rotated either, by itself."""
    said = settle(LifecycleRequest(lifecycle, recover=Recover.NEVER, snapshot_every=0, identities=2)).keeping
    assert said == Durability(lifecycle=lifecycle, sleeps=lifecycle is HYBRID)
    said = settle(LifecycleRequest(lifecycle, snapshot_every=60, rotate=False, identities=2)).keeping
    assert (said.every_seconds, said.rotates, said.recovers) == (60, False, True)


def test_each_can_be_had_without_a_word() -> None:
    """A lifecycle is no more than its parts."""
    asked = LifecycleRequest(
        idle="sleep", idle_seconds=9, recover=Recover.LAST_SNAPSHOT, snapshot_every=90, rotate=True
    )
    settled = settle(asked)
    assert settled.keeping == Durability(sleeps=True, rotates=True, recovers=True, every_seconds=90)
    assert (settled.idle_seconds, settled.runs_long) == (9, False)
    assert settle(LifecycleRequest(HYBRID, idle_seconds=7)).idle_seconds == 7
    assert settle(LifecycleRequest(EPHEMERAL, idle_seconds=7)).idle_seconds == 7


def test_what_needs_saving_says_so() -> None:
    """Each alone does: a sandbox that cannot be saved is refused for it, and not told later."""
    assert not Durability(rotates=True, lifecycle=EPHEMERAL).saves
    for keeping in (Durability(sleeps=True), Durability(recovers=True), Durability(every_seconds=60)):
        assert keeping.saves


@pytest.mark.parametrize(
    ("asked", "said", "hint"),
    [
        (LifecycleRequest(EPHEMERAL, idle="sleep"), "not kept", "hybrid"),
        (LifecycleRequest(EPHEMERAL, snapshot_every=60), "not kept", "hybrid"),
        (LifecycleRequest(EPHEMERAL, rotate=True), "not kept", "hybrid"),
        (LifecycleRequest(EPHEMERAL, recover=Recover.LAST_SNAPSHOT), "not kept", "hybrid"),
        (LifecycleRequest(LONG, idle_seconds=60), "a long-running sandbox keeps running", "hybrid"),
        (LifecycleRequest(SHARED, idle_seconds=60, identities=2), "a shared sandbox keeps running", "hybrid"),
        (LifecycleRequest(SHARED), "several identities", "--identity"),
        (LifecycleRequest(HYBRID, idle="end"), "sleeps when it is idle", "ephemeral"),
        (LifecycleRequest(rotate=True), "only periodic snapshots are rotated", "--snapshot-every"),
        (LifecycleRequest(LONG, snapshot_every=0, rotate=True), "only periodic", "--snapshot-every"),
        (LifecycleRequest(snapshot_every=59.9), "every 59.9 s", "every 60 s"),
    ],
)
def test_what_contradicts_itself_is_refused_with_a_way_out(
    asked: LifecycleRequest, said: str, hint: str
) -> None:
    """Before anything is made; nothing of it is quietly left out."""
    with pytest.raises(Contradiction, match=said) as caught:
        settle(asked)
    assert hint in caught.value.hint


def test_what_says_the_same_twice_does_not_contradict() -> None:
    """Somebody may write down what a word stands for anyway."""
    plain = LifecycleRequest(EPHEMERAL, idle="end", recover=Recover.NEVER, snapshot_every=0, rotate=False)
    assert settle(plain) == settle(LifecycleRequest(EPHEMERAL))
    assert settle(LifecycleRequest(HYBRID, idle="sleep", rotate=True)) == settle(LifecycleRequest(HYBRID))
    assert settle(LifecycleRequest(snapshot_every=60)).keeping.every_seconds == 60
