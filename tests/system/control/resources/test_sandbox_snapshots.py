"""Who may save, fork and wake a sandbox, and what one is told who cannot."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from coatcheck.client.control import ControlError
from coatcheck.control.sandbox_opening import AFTERLIFE_SECONDS
from coatcheck.durable.durability import Durability
from coatcheck.durable.snapshotting import save
from coatcheck.durable.store import SNAPSHOTS
from coatcheck.sandbox.limits import Limits
from tests.durable.test_store import begin, keeper, sandbox
from tests.durable.test_store import save as saved
from tests.sandboxes import POLICY, WANTED, Place, place, sandbox_in
from tests.upstreams import UpstreamTls

pytestmark = [pytest.mark.needs_debian("bwrap", "runc"), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def where(all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[Place]:
    async with place(all_output, upstream_tls) as running:
        yield running


async def refused(work: Awaitable[object]) -> str:
    with pytest.raises(ControlError) as caught:
        await work
    return caught.value.reason


async def test_a_namespace_sandbox_can_only_run(where: Place) -> None:
    """Each of these says that it cannot be saved; nothing happens to it."""
    async with sandbox_in(where, "launcher") as made, where.client("launcher") as client:
        assert await refused(made.snapshot("one")) == "unsavable"
        assert await refused(made.sleep()) == "unsavable"
        assert await refused(client.fork(made.id)) == "unsavable"
        assert await refused(made.restore()) == "unknown_snapshot"
        assert await made.snapshots() == []
        assert await refused(made.remove_snapshot("one")) == "unknown_snapshot"
        await made.wake()
        assert made.shown["state"] == "running"


async def test_handles_that_must_not_travel_are_in_no_snapshot(
    all_output: Path, upstream_tls: UpstreamTls
) -> None:
    """Policy says so; it is neither saved nor put to sleep, and the answer names the credential."""
    strict = POLICY.replace("env: OPENAI_API_KEY", "env: OPENAI_API_KEY\n    inherit: false")
    async with place(all_output, upstream_tls, strict) as where, sandbox_in(where) as made:
        for work in (made.snapshot("one"), made.sleep()):
            with pytest.raises(ControlError, match=r"must not be in a snapshot: of openai") as caught:
                await work
            assert caught.value.reason == "unsavable"


async def test_what_an_idle_one_holds_may_become_what_must_not_travel(where: Place) -> None:
    """Its supervisor asks before it falls asleep by itself; policy as it is then counts."""
    policy = where.daemon.settings.policy / "default.yaml"
    async with sandbox_in(where, "launcher") as made:
        assert where.control().may_save_sandbox(made.id)["id"] == made.id
        asked = asyncio.to_thread(where.control("launcher").may_save_sandbox, made.id)
        assert await refused(asked) == "forbidden"
        unknown = asyncio.to_thread(where.control().may_save_sandbox, "sbx_0000000000000000")
        assert await refused(unknown) == "unknown_sandbox"
        policy.write_text(POLICY.replace("env: OPENAI_API_KEY", "env: OPENAI_API_KEY\n    inherit: false"))
        try:
            assert await where.daemon.reload()
            assert await refused(asyncio.to_thread(where.control().may_save_sandbox, made.id)) == "unsavable"
        finally:
            policy.write_text(POLICY)
            assert await where.daemon.reload()


async def test_only_its_own_maker_may(where: Place) -> None:
    """Another launcher learns not even that it is there; an operator sees it, and starts nothing."""
    async with sandbox_in(where, "launcher") as made:
        for caller, reason in (("other", "unknown_sandbox"), ("operator", "forbidden")):
            control = where.control(caller)
            calls: dict[str, Callable[[str], object]] = {
                "snapshot": partial(control.take_snapshot, name="one"),
                "fork": control.fork_sandbox,
                "restore": control.restore_sandbox,
                "sleep": control.sleep_sandbox,
                "wake": control.wake_sandbox,
            }
            for what, call in calls.items():
                assert await refused(asyncio.to_thread(call, made.id)) == reason, what


async def test_where_fewer_may_be_by_now_the_oldest_periodic_ones_go_and_each_is_told(tmp_path: Path) -> None:
    """Once the new one is there, and not the one that somebody begins from just now."""
    kept, one = keeper(tmp_path, max_snapshots=3), replace(sandbox(), keeping=Durability(rotates=True))
    begin(kept, "ses_1", of=one)
    place = kept.place(one.id) / SNAPSHOTS
    for number in range(5):
        saved(kept, place / f"auto-{number}", number)
    told: list[tuple[str, str]] = []

    def ask(sandbox: str, method: str, target: str, asked: dict[str, Any], seconds: float) -> None:
        assert (target, asked) == ("/snapshot", {"name": "new", "replaces": "auto-1", "limit": 3})
        saved(kept, place / "new", 5)
        kept.remove(sandbox, "auto-1")

    sandboxes: Any = SimpleNamespace(
        kept=kept, ask=ask, noted=lambda _, change, what: told.append((change, what))
    )
    state: Any = SimpleNamespace(policies={}, sessions=SimpleNamespace(by_id={}))
    with kept.using(one.id, place / "auto-0"):
        await save(sandboxes, state, one, "new")
    assert [each.name for each in kept.snapshots(one.id)] == ["auto-0", "auto-4", "new"]
    assert told == [
        ("snapshot", "new"),
        *(("snapshot_removed", f"auto-{gone}: new has its place") for gone in (1, 2, 3)),
    ]


@pytest.mark.parametrize("name", ["", "../x", "A", ".x", "x" * 65])
async def test_a_snapshots_name_is_a_name(where: Place, name: str) -> None:
    """It becomes a directory's."""
    control = where.control("launcher")
    asked = asyncio.to_thread(control.take_snapshot, "sbx_0123456789abcdef", name)
    assert await refused(asked) == "malformed"


@pytest.mark.parametrize(
    ("asked", "reason", "said"),
    [
        ({"lifecycle": "ephemeral", "idle": "sleep"}, "bad_value", "is not kept"),
        ({"lifecycle": "shared"}, "bad_value", "has several identities"),
        ({"snapshot_every": 5}, "bad_value", "every 5 s"),
        ({"lifecycle": "hybrid"}, "unsavable", "it is a namespace sandbox"),
        ({"recover": "last-snapshot"}, "unsavable", "it is a namespace sandbox"),
        ({"lifecycle": "for ever"}, "malformed", "lifecycle"),
    ],
)
async def test_a_promise_that_cannot_be_kept_is_not_made(
    where: Place, asked: dict[str, object], reason: str, said: str
) -> None:
    """What contradicts itself, or what this sandbox cannot do, is refused before anything is made."""
    async with where.client("launcher") as client:
        with pytest.raises(ControlError, match=said) as caught:
            await client.create(**{**WANTED, **asked})
        assert caught.value.reason == reason and caught.value.hint
    assert not [each for each in where.daemon.sandboxes.all() if not each.over]


async def test_a_lifecycle_is_shown_with_all_that_it_stands_for(where: Place) -> None:
    """And what was said beside it; its time limit is as long as the operator's where it is to run long."""
    never = {"recover": "never", "snapshot_every": 0}
    async with sandbox_in(where, "launcher", lifecycle="long-running", **never) as made:
        assert made.shown["keeping"] == {
            "lifecycle": "long-running",
            "idle": "end",
            "recover": "never",
            "snapshot_every": 0,
            "rotate_snapshots": False,
        }
        longest = where.daemon.settings.sandbox_max_run
        lives = made.shown["expires_at"] - made.shown["created_at"]
        assert longest - AFTERLIFE_SECONDS <= lives <= longest
    async with sandbox_in(where, "launcher", lifecycle="ephemeral") as made:
        assert made.shown["expires_at"] - made.shown["created_at"] == Limits().run_seconds
