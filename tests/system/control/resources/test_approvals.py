"""Who may see and answer held requests: operators of the tenant, never who opens sessions."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coatcheck.client.control import ControlError
from coatcheck.decision.denial import Deny
from coatcheck.policy import load_policy
from tests.asking import held, waiting
from tests.system.control.conftest import Control

POLICY = b"""
version: 1
owner: tests
rules:
  - {name: merge, hosts: [api.example.org], methods: [PUT], ask: {wait: 10m, remember: 15m, same: rule}}
"""

type Held = tuple[str, "asyncio.Task[str | Deny]"]


@pytest.fixture
async def asked(control: Control) -> AsyncIterator[Held]:
    """A held request of tenant acme, opened by ci-launcher: its id, and what becomes of it."""
    opened = await control.session()
    session = control.daemon.state.sessions.by_id[opened]
    state, approvals = control.daemon.state, control.daemon.exchange.approvals
    before = dict(state.policies)
    state.swap_policies({**before, session.policy: load_policy(session.policy, POLICY)})
    request = held(approvals, state, session)
    await waiting(approvals, 1)
    yield approvals.waiting()[0].id, request
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    state.swap_policies(before)


async def tried(control: Control, caller: str, approval: str, word: str = "yes", **more: Any) -> str:
    """Who answered, or the reason why they may not."""
    client = control.owner if caller == "owner" else control.client(caller)
    try:
        done = await asyncio.to_thread(lambda: client.answer_approval(approval, word, **more))
    except ControlError as error:
        return f"refused: {error.reason}"
    return str(done["approver"])


async def listed(control: Control, caller: str) -> int:
    return len(await asyncio.to_thread(control.client(caller).approvals))


async def test_who_opens_sessions_answers_for_none(control: Control, asked: Held) -> None:
    """Nor an auditor, nor an operator of another tenant, for whom it does not exist."""
    for caller in ("ci-launcher", "auditor"):
        assert await tried(control, caller, asked[0]) == "refused: forbidden"
    assert await tried(control, "acme-operator", "apr_0123456789abcdef") == "refused: not_waiting"
    assert not asked[1].done()
    assert await tried(control, "acme-operator", asked[0], "no") == "acme-operator"
    assert isinstance(await asked[1], Deny)


async def test_each_sees_what_is_theirs(control: Control, asked: Held) -> None:
    """A launcher its own sessions', operators and auditors their tenants'."""
    seen = {
        name: await listed(control, name)
        for name in ("ci-launcher", "other-launcher", "auditor", "other-auditor")
    }
    assert seen == {"ci-launcher": 1, "other-launcher": 0, "auditor": 1, "other-auditor": 0}


async def test_the_answer_says_what_was_allowed_and_on_whose_word(control: Control, asked: Held) -> None:
    """A program answers for people, and both are recorded."""
    assert (
        await tried(control, "operator", asked[0], person="alice", remember_seconds=60)
        == "operator for alice"
    )
    assert await asked[1] == "operator for alice"
    (record,) = (each for each in control.daemon.records() if each.get("change") == "approved")
    assert (record["approver"], record["remembered_seconds"]) == ("operator for alice", 60)
    assert (record["method"], record["destination"], record["path"]) == (
        "PUT",
        "https://api.example.org",
        "/merge",
    )


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"answer": "maybe"},
        {"answer": True},
        {"answer": "yes", "remember_seconds": -1},
        {"answer": "yes", "who": "x"},
    ],
)
async def test_what_is_no_answer_is_none(control: Control, asked: Held, body: dict[str, Any]) -> None:
    """Nothing is guessed about a yes."""
    refused = await control.ask("POST", f"/v1/approvals/{asked[0]}", caller="operator", body=body)
    assert refused.status in (400, 422) and not asked[1].done()
