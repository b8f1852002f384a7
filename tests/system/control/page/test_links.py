"""A link from the Unix socket logs in a user of the socket, once."""

import asyncio

import pytest

from coatcheck.client.control import ControlError
from tests.daemon import TestDaemon
from tests.system.control.conftest import Control
from tests.system.control.page.conftest import headers
from tests.system.planes.conftest import daemon as daemon


async def test_a_link_logs_in_once(control: Control) -> None:
    """The code stands behind `#`, which browsers keep to themselves."""
    link = await asyncio.to_thread(control.owner.page_link)
    page, _, code = link["url"].partition("#login=")
    assert page == link["page"] == f"{control.url}/page/" and len(code) == 43
    for status in (200, 401):
        answer = await control.ask("POST", "/page/login", body={"code": code}, headers=headers(control))
        assert answer.status == status
    who = [each["detail"] for each in control.daemon.records() if each.get("what") == "page_login"]
    assert len(who) == 1 and who[0].startswith("uid:") and who[0].endswith(", by a link")


async def test_a_launcher_gets_none(control: Control) -> None:
    """By its token over TCP."""
    with pytest.raises(ControlError) as refused:
        await asyncio.to_thread(control.client("ci-launcher").page_link)
    assert refused.value.reason == "forbidden"


async def test_without_tcp_it_says_how_to_switch_the_page_on(daemon: TestDaemon) -> None:
    """A daemon on its socket alone serves none."""
    from coatcheck.client.control import ControlClient

    with pytest.raises(ControlError) as refused:
        await asyncio.to_thread(ControlClient(daemon.settings.control).page_link)
    assert refused.value.reason == "no_page" and "COATCHECK_CONTROL_PORT" in refused.value.hint


async def test_a_link_of_before_the_grants_changed_lets_nobody_in(control: Control) -> None:
    """Anyone who stole a token makes a link with it; the token is replaced, and the link with it."""
    link = await asyncio.to_thread(control.owner.page_link)
    await asyncio.to_thread(control.owner.reload)
    body = {"code": link["url"].partition("#login=")[2]}
    answer = await control.ask("POST", "/page/login", body=body, headers=headers(control))
    assert answer.status == 401
