"""Threads for what waits for a disk."""

import asyncio
import threading
from functools import partial
from typing import Any, cast

import pytest

from coatcheck.control import context as module
from coatcheck.control.context import Context
from coatcheck.control.problem import ControlProblem
from coatcheck.state.errors import Problem, StateError


def make() -> Context:
    return Context(cast(Any, None), cast(Any, None))


async def test_taking_does_not_wait_for_giving() -> None:
    """A hundred openings stand in line; a revocation is done at once."""
    context, slow = make(), threading.Event()
    giving = [asyncio.create_task(context.give(lambda: slow.wait(60))) for _ in range(100)]
    await asyncio.sleep(0)
    assert await context.take(lambda: "revoked") == "revoked"
    assert await context.read(lambda: "read") == "read"
    assert not any(each.done() for each in giving)
    slow.set()
    assert all(await asyncio.gather(*giving))
    await context.close()


async def test_a_revocation_waits_for_no_other_to_be_in_force() -> None:
    """A hundred are in force here, and wait for a disk or for a database of a fleet that hangs: the next
    one is in force at once."""
    context, slow = make(), threading.Event()
    in_force: list[int] = []

    def revoke(number: int) -> bool:
        in_force.append(number)
        return slow.wait(60)

    taking = [asyncio.create_task(context.take(partial(revoke, each))) for each in range(module.MAX_WAITING)]
    try:
        async with asyncio.timeout(30):
            while len(in_force) < module.MAX_WAITING:
                await asyncio.sleep(0.01)
    finally:
        slow.set()
        assert all(await asyncio.gather(*taking))
        await context.close()


async def test_the_line_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it: 503, and room again once somebody is served."""
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    context, slow = make(), threading.Event()
    waiting = [asyncio.create_task(context.give(lambda: slow.wait(60))) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(ControlProblem) as busy:
        await context.give(lambda: True)
    assert (busy.value.reason, busy.value.status) == ("busy", 503)
    slow.set()
    await asyncio.gather(*waiting)
    assert await context.give(lambda: True)
    await context.close()


async def test_the_states_refusals_become_answers() -> None:
    """With their reason, message and hint."""

    def refuse() -> None:
        raise StateError(Problem.SESSION_CLOSED, "it is over", "Open another.")

    context = make()
    with pytest.raises(ControlProblem) as problem:
        await context.give(refuse)
    assert (problem.value.status, problem.value.message, problem.value.hint) == (
        409,
        "it is over",
        "Open another.",
    )
    await context.close()
