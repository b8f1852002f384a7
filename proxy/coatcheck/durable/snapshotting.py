"""In the daemon: saves a sandbox on request: whether policy allows it, and which snapshot the new one
replaces."""

import asyncio
from collections.abc import Collection, Iterable
from functools import partial

from coatcheck.decision.policy import Policy
from coatcheck.durable.incarnations import SAVE_SECONDS
from coatcheck.durable.sandbox import Sandbox
from coatcheck.durable.sandboxes import Sandboxes
from coatcheck.sandbox.sandbox import SandboxProblem, SandboxRefused
from coatcheck.state.state import State
from coatcheck.telemetry.events import SandboxChange


def held_back(policy: Policy | None, granted: Iterable[Collection[str] | None]) -> list[str]:
    """Credentials whose handles policy lets in no snapshot, of those that are granted (None: all)."""
    found = policy.credentials.values() if policy is not None else ()
    never = {each.name for each in found if not each.inherit}
    return sorted({name for names in granted for name in (never if names is None else never & set(names))})


def check_savable(state: State, sandbox: Sandbox) -> None:
    """SandboxRefused. Policy may have changed since the sandbox was made: what it says now counts."""
    policy = state.policies.get(sandbox.policy)
    sessions = [state.sessions.by_id.get(each) for each in sandbox.sessions.values()]
    never = held_back(policy, [each.credentials for each in sessions if each is not None])
    if never:
        raise SandboxRefused(
            SandboxProblem.UNSAVABLE,
            f"it holds handles that must not be in a snapshot: of {', '.join(never)} (inherit: false)",
            "Make a sandbox without these credentials, or have the policy's owner let them be inherited.",
        )


async def save(sandboxes: Sandboxes, state: State, sandbox: Sandbox, name: str) -> None:
    """It is saved as `name` when this returns; the oldest periodic snapshots make room where they may.
    SandboxRefused."""
    check_savable(state, sandbox)
    kept = sandboxes.kept
    room = kept.making_room(sandbox.id, sandbox.keeping)
    replaced = await asyncio.to_thread(room.__enter__)
    try:
        asked = {"name": name, "replaces": next(iter(replaced), None), "limit": kept.limit}
        await asyncio.to_thread(sandboxes.ask, sandbox.id, "POST", "/snapshot", asked, SAVE_SECONDS)
        sandboxes.noted(sandbox.id, SandboxChange.SNAPSHOT, name)
        for each in replaced[1:]:  # as many as may be were fewer than before
            await asyncio.to_thread(partial(kept.remove, sandbox.id, each))
        for each in replaced:
            sandboxes.noted(sandbox.id, SandboxChange.SNAPSHOT_REMOVED, f"{each}: {name} has its place")
    finally:
        room.__exit__(None, None, None)
