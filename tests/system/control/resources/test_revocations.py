"""Many sessions at once, or one credential of theirs: for the day when something leaked."""

import asyncio
from typing import Any

import pytest

from coatcheck.client.control import ControlError
from tests.system.control.conftest import CALLERS, Control


async def revoke(control: Control, caller: str, **named: Any) -> int | str:
    """How many sessions, or the reason of the refusal."""
    client = control.owner if caller == "owner" else control.client(caller)
    try:
        return await asyncio.to_thread(lambda: client.revoke_many(**named))
    except ControlError as error:
        return error.reason


async def statuses(control: Control, *sessions: str) -> list[str]:
    listed = await asyncio.to_thread(control.owner.list)
    by_id = {each["id"]: each["status"] for each in listed}
    return [by_id[session] for session in sessions]


async def test_each_caller_ends_what_it_may_end_one_by_one(control: Control) -> None:
    """A launcher its own, an operator those of its tenants, an auditor none; what is over is not counted."""
    mine = await control.session()
    other = await control.session("other-launcher", policy="default")
    foreign = await control.session("any-origin", tenant="globex")
    for caller in ("auditor", "other-auditor"):
        assert await revoke(control, caller, everything=True) == "forbidden"
    assert await revoke(control, "ci-launcher", everything=True) == 1
    assert await statuses(control, mine, other, foreign) == ["revoked", "live", "live"]
    assert await revoke(control, "acme-operator", everything=True, why="test") == 1
    assert await statuses(control, mine, other, foreign) == ["revoked", "revoked", "live"]
    assert await revoke(control, "operator", everything=True) == 1
    assert await revoke(control, "owner", everything=True) == 0
    assert await statuses(control, foreign) == ["revoked"] and "operator" in CALLERS


async def test_names_narrow_it_down(control: Control) -> None:
    """All of them must fit."""
    one = await control.session("any-origin", subject="one")
    two = await control.session("any-origin", subject="two")
    three = await control.session("any-origin", subject="two", tenant="globex")
    assert await revoke(control, "owner", subject="two", tenant="globex") == 1
    assert await statuses(control, one, two, three) == ["live", "live", "revoked"]
    assert await revoke(control, "owner", policy="default", subject="nobody") == 0
    assert await revoke(control, "owner", policy="default") == 2


async def test_a_credential_is_taken_and_the_session_goes_on(control: Control) -> None:
    """The audit log has who and why, once a session."""
    session = await control.session()
    before = (await asyncio.to_thread(control.owner.show, session))["session"]["credentials"]
    assert "openai" in before
    for expected in (1, 0):
        assert (
            await revoke(control, "operator", policy="default", credential="openai", why="leaked") == expected
        )
    shown = (await asyncio.to_thread(control.owner.show, session))["session"]
    assert shown["status"] == "live" and shown["credentials"] == [c for c in before if c != "openai"]
    (record,) = (r for r in control.daemon.records() if r.get("change") == "credential_revoked")
    assert (record["session"], record["caller"], record["detail"]) == (session, "operator", "openai leaked")


@pytest.mark.parametrize(
    "named",
    [{}, {"everything": True, "tenant": "acme"}, {"everything": True, "credential": "openai"}],
    ids=["nothing", "both", "credential without policy"],
)
async def test_what_is_not_meant_clearly_is_not_done(control: Control, named: dict[str, Any]) -> None:
    """An empty body ends nothing: `everything` is said."""
    session = await control.session()
    assert await revoke(control, "owner", **named) == "bad_value"
    assert await statuses(control, session) == ["live"]
