"""Who is told what happens to which sandboxes, over the API and by the command."""

import asyncio
import errno
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coatcheck.client.control import ControlError
from coatcheck.durable import starting
from tests.cli.transcript import coatcheck
from tests.sandboxes import WANTED, Place, place, sandbox_in
from tests.upstreams import UpstreamTls

pytestmark = [pytest.mark.needs_debian("bwrap", "runc"), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def where(all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[Place]:
    async with place(all_output, upstream_tls, max_sandboxes_per_caller=1) as running:
        yield running


async def heard(where: Place, caller: str | None, after: int) -> list[dict[str, Any]]:
    page = await asyncio.to_thread(where.control(caller).events, after)
    assert not page["missed"]
    return list(page["events"])


async def test_a_sandboxs_life_is_told_to_whoever_sees_it(where: Place) -> None:
    """Its launcher, and those who answer for its tenant; not another launcher, nor another tenant's."""
    begin = {
        each: where.control(each).events()["next"] for each in ("launcher", "other", "operator", "elsewhere")
    }
    async with sandbox_in(where, "launcher") as made:
        pass
    for caller in ("launcher", "operator"):
        told = await heard(where, caller, begin[caller])
        assert [each["change"] for each in told] == ["created", "running", "ended"]
        assert {each["sandbox"] for each in told} == {made.id}
        assert told[-1]["ending"] == "killed"
        assert told[0]["sessions"] == list(made.shown["sessions"].values())
    for caller in ("other", "elsewhere"):
        assert await heard(where, caller, begin[caller]) == []


async def test_whoever_waits_hears_of_it_at_once(where: Place) -> None:
    """And may ask about one sandbox only."""
    control = where.control("launcher")
    after = control.events()["next"]
    waiting = asyncio.create_task(asyncio.to_thread(control.events, after, None, 20))
    async with sandbox_in(where, "launcher") as made:
        assert [each["change"] for each in (await waiting)["events"]] == ["created"]
        of_another = control.events(after, "sbx_0123456789abcdef")
        assert of_another["events"] == [] and of_another["next"] > after
        assert control.events(after, made.id)["events"][0]["sandbox"] == made.id


async def test_that_somebody_could_have_none_is_told_too(where: Place) -> None:
    """With the reason; it has no id."""
    control = where.control("launcher")
    async with sandbox_in(where, "launcher"):
        after = control.events()["next"]
        with pytest.raises(ControlError):
            control.create_sandbox(**WANTED)
        (told,) = await heard(where, "operator", after)
        assert (told["change"], told["sandbox"], told["ending"]) == ("refused", "", "too_many_sandboxes")


async def test_one_that_cannot_be_started_is_told_as_refused(
    where: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was admitted, and had sessions; these are over."""

    def no_process(*rest: object) -> None:
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(starting, "spawn", no_process)
    control = where.control("launcher")
    after = control.events()["next"]
    with pytest.raises(ControlError):
        await asyncio.to_thread(control.create_sandbox, **WANTED)
    created, told = await heard(where, "launcher", after)
    assert (created["change"], told["change"], told["ending"]) == ("created", "refused", "not_started")
    assert told["sandbox"] == created["sandbox"] and "no more processes" in told["detail"]
    assert not where.control().list(status="live")


async def test_the_command_writes_a_line_for_each(where: Place) -> None:
    """For people, or a JSON document each."""
    after = str(where.control(None).events()["next"])
    async with sandbox_in(where) as made:
        pass
    options = ("events", "--after", after, "--once", "--socket", where.socket)
    said = await asyncio.to_thread(coatcheck, *options, cwd=Path.cwd())
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert len(lines) == 3 and all(made.id in line for line in lines) and "killed" in lines[-1]
    said = await asyncio.to_thread(coatcheck, *options, "--json", cwd=Path.cwd())
    assert [json.loads(line)["change"] for line in said.out.splitlines()] == ["created", "running", "ended"]
