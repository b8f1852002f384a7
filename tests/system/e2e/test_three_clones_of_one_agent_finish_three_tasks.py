"""A running agent is forked three times: each copy goes on with the string that it holds, as somebody new.

One guest for the whole module: it boots once, and is copied.
"""

import asyncio

import pytest

from tests.system.e2e.agent_family import (
    Family,
    asked_with,
    done,
    family,
    key_in,
)

__all__ = ["family"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_three_clones_finish_three_tasks_as_three_sessions(family: Family) -> None:
    """The very process, with the string of its parent, attributed to each clone's own session. The parent
    goes on, undisturbed. Sessions, chance, host name, machine-id: nothing of these is shared."""
    everybody = [family.parent, *family.clones]
    results = await asyncio.gather(*(done(each, f"task-{n}") for n, each in enumerate(everybody)))
    assert [each["said"][0] for each in results] == [200] * 4, results
    assert len({each["pid"] for each in results}) == 1  # it is the same program, four times
    mine = family.parent.shown["sessions"]["agent"]
    theirs = [each.shown["sessions"]["agent"] for each in family.clones]
    calls = [each for each in family.where.daemon.decisions() if each["outcome"] == "inject"]
    assert [(each["session"], each["handle_of"]) for each in calls if each["session"] == mine] == [(mine, "")]
    assert {(each["session"], each["handle_of"]) for each in calls} - {(mine, "")} == {
        (session, mine) for session in theirs
    }
    # What its program, and a new one, get first of chance differs everywhere; so does whatever it is called.
    assert len({each["first"] for each in results}) == 4
    script = "head -c 16 /dev/urandom | od -An -tx1; uname -n; cat /etc/machine-id"
    said = await asyncio.gather(*(each.run(["sh", "-c", script]) for each in everybody))
    told = [each.stdout.decode().split("\n")[:3] for each in said]
    assert [len(set(different)) for different in zip(*told, strict=True)] == [4, 4, 4]
    forked = {each["sandbox"] for each in family.where.daemon.records() if each.get("change") == "forked"}
    assert forked == {each.id for each in family.clones}
    assert family.parent.shown["one_size"] == "no ceiling was asked for"
    assert all("belongs to its siblings" in each.shown["one_size"] for each in family.clones)


async def test_no_authority_crosses_between_them(family: Family) -> None:
    """A clone's string is stolen goods in its parent and in its sibling; the parent's names a clone's own
    grant there, and nothing of the parent's."""
    parent, (one, two, _) = family.parent, family.clones
    key = await key_in(one)
    assert await asked_with(one, key) == (200, "")
    assert await asked_with(parent, key) == (401, "handle_stolen")
    assert await asked_with(two, key) == (401, "handle_stolen")
    before = await key_in(parent)
    assert await asked_with(two, before) == (200, "")
    last = family.where.daemon.decisions()[-1]
    assert last["session"] == two.shown["sessions"]["agent"]
