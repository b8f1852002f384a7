"""What the daemon tells of itself, and to whom."""

import asyncio

import pytest

from coatcheck.client.control import ControlError
from tests.system.control.conftest import Control


async def test_who_may_read_metrics_of_all_tenants_may_see_where_the_daemon_is(control: Control) -> None:
    """A launcher or an operator of one tenant may not: paths and other tenants' policies are in it."""
    shown = await asyncio.to_thread(control.client("operator").status)
    assert shown["ready"] and shown["stores"] == [{"name": "memory", "trouble": None, "hint": None}]
    told = {each["name"]: each["value"] for each in shown["facts"]}
    assert told["control socket"] == str(control.socket) and told["control API and page"].startswith(
        control.url
    )
    assert told["proxy"].startswith("127.0.0.1:")
    for caller in ("ci-launcher", "acme-operator"):
        with pytest.raises(ControlError) as refused:
            await asyncio.to_thread(control.client(caller).status)
        assert refused.value.reason == "forbidden"


async def test_sessions_are_counted_while_they_live(control: Control) -> None:
    """An ended one is not."""
    session = await control.session()
    assert (await asyncio.to_thread(control.owner.status))["sessions"] == 1
    await asyncio.to_thread(control.owner.end, session)
    assert (await asyncio.to_thread(control.owner.status))["sessions"] == 0
