"""Somebody on call at one daemon's page, in a real Chromium; the sandboxes are another's of its fleet."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from coatcheck.policy import load_policy
from tests.browser import Person, chromium
from tests.planes.wire import http_client
from tests.system.control.conftest import CALLERS, Control, Ground, ground, running_control, short_dir
from tests.system.e2e.on_call import SLOW, drain, log_in
from tests.system.e2e.story import MODELS, bearer, policy, until
from tests.system.fleet.fleet import new_key
from tests.system.fleet.postgres_server import PASSWORD, PostgresServer, postgres_server

__all__ = ["ground", "short_dir"]

pytestmark = [pytest.mark.needs_debian("chromedriver"), pytest.mark.needs_debian("/usr/lib/postgresql")]

FREE = """
  - name: free
    hosts: [upstream.example]
    methods: [GET]
"""


@dataclass(frozen=True, slots=True)
class TwoDaemons:
    near: Control
    """Whose page is looked at."""
    far: Control
    """Through which the sandboxes talk."""


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    with postgres_server() as made:
        yield made


@pytest.fixture
async def two(database: PostgresServer, ground: Ground) -> AsyncIterator[TwoDaemons]:
    password = ground.directory / "password"
    password.write_text(PASSWORD)
    settings: dict[str, Any] = {
        "shared_state": database.url,
        "shared_state_key": new_key(ground.directory / "key"),
        "shared_state_password_file": password,
        "shared_state_max_silence": 30.0,
    }
    elsewhere = replace(ground, directory=ground.directory / "far", state=ground.state / "far")
    elsewhere.directory.mkdir()
    async with (
        running_control(ground, CALLERS, **settings) as near,
        running_control(elsewhere, CALLERS, **settings) as far,
    ):
        made = TwoDaemons(near, far)
        await until(lambda: members(made), lambda seen: seen == [2, 2], patience=60)
        yield made


async def members(two: TwoDaemons) -> list[int]:
    """How many each of them hears of."""
    found = [each.daemon.member for each in (two.near, two.far)]
    return [each.follower.members if each is not None else 0 for each in found]


@pytest.fixture
def person(two: TwoDaemons) -> Iterator[Person]:
    with chromium() as driver:
        person = Person(driver)
        log_in(person, two.near)
        yield person
        assert person.complaints() == []


async def test_a_page_shows_and_revokes_what_runs_at_another_daemon(person: Person, two: TwoDaemons) -> None:
    """Its sessions are listed, what waits there is answered here, a stream that runs there is cut from here,
    a handle in a wrong place there is an alarm here, and everything of the fleet is revoked with one word."""
    far = two.far.daemon
    asking = load_policy("default", policy(rule="ask: {wait: 10m}").encode())
    for each in (two.near.daemon, far):
        each.state.swap_policies({"default": asking})
    sandbox = await far.sandbox(subject="agent-far")
    await asyncio.to_thread(person.reads, "#sessions-list", "acme / agent-far")

    async with http_client(far, sandbox) as http:
        request = asyncio.ensure_future(http.get(MODELS, headers=bearer(sandbox), timeout=120))
        await asyncio.to_thread(person.reads, "#approvals-list", MODELS)
        await asyncio.to_thread(person.click, "#approvals-list [aria-label^='Yes to']")
        assert (await request).status_code == 200
        await asyncio.to_thread(person.reads, "#approvals", "Nothing waits")

        for each in (two.near.daemon, far):
            each.state.swap_policies({"default": load_policy("default", (policy() + FREE).encode())})

        def revoke() -> None:
            person.click("#sessions-list .danger")
            person.click("#confirm-yes")
            person.reads("#announce", "is revoked")
            person.reads("#sessions", "No sandbox has a session")

        async with http.stream("GET", SLOW, headers=bearer(sandbox), timeout=120) as stream:
            assert stream.status_code == 200
            parts = stream.aiter_raw()
            await anext(parts)
            clicking = asyncio.ensure_future(asyncio.to_thread(revoke))
            with pytest.raises(httpx.TransportError):
                await asyncio.wait_for(drain(parts), 120)
            await clicking
    (told,) = [each for each in far.records() if each.get("change") == "revoked"]
    assert told["caller"].startswith("fleet:")
    (told,) = [each for each in two.near.daemon.records() if each.get("change") == "revoked"]
    assert told["caller"] == "operator"

    thief = await far.sandbox(subject="thief")
    async with http_client(far, thief) as http:
        stolen = await http.get("https://upstream.example/steal", headers=bearer(thief))
    assert stolen.status_code == 403
    alarm = await asyncio.to_thread(person.reads, "#alarms-list", "https://upstream.example/steal")
    assert thief.session.id.removeprefix("ses_")[:4] in alarm

    others = [await far.sandbox(subject=f"agent-{number}") for number in range(2)]

    def everything() -> None:
        person.reads("#sessions-list", "agent-1")
        person.click("#revoke-many")
        person.run("document.querySelector('#confirm-scope').value = 'everything'")
        person.run("document.querySelector('#confirm-scope').dispatchEvent(new Event('change'))")
        person.type("#confirm-word", "revoke")
        person.click("#confirm-yes")
        person.reads("#announce", "Done: ")

    await asyncio.to_thread(everything)

    async def statuses() -> set[str]:
        return {far.state.status(each.session.id) for each in others}

    await until(statuses, lambda seen: seen == {"revoked"}, patience=60)
    assert b"coatcheck_shared_state_owed 0.0" in two.near.daemon.metrics.render()
