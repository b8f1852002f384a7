"""Generations of one agent: what one of them holds has no authority in the life of another.

One guest for the whole module: it boots once, and is copied.
"""

import asyncio
from pathlib import Path

import pytest

from coatcheck.client.control import ControlError
from coatcheck.client.sandbox import Sandbox
from coatcheck.state import Status
from tests.known_secrets import needles
from tests.secret_grep import leaks_below
from tests.system.e2e.agent_family import (
    HOME,
    SECONDS,
    Family,
    asked_with,
    content,
    done,
    family,
    key_in,
)

__all__ = ["family"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


HALF = """
import http.client, os, ssl, time
body = b'{"model": "m", "messages": [{"role": "user", "content": "half"}]}'
asked = http.client.HTTPSConnection("api.openai.com", timeout=60, context=ssl.create_default_context())
asked.putrequest("POST", "/v1/chat/completions")
asked.putheader("Authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
asked.putheader("Content-Length", str(len(body)))
asked.endheaders(body[:20])
open("half", "w").close()
while not os.path.exists("go"):
    time.sleep(0.05)
try:
    asked.send(body[20:])
    said = str(asked.getresponse().status)
except Exception as error:
    said = type(error).__name__
with open("whole.new", "w") as file:
    file.write(said)
os.rename("whole.new", "whole")
"""
"""A request of which one half is sent, and the other half when somebody says so."""


async def test_each_life_is_of_a_later_generation_and_no_earlier_life_goes_on(family: Family) -> None:
    """A fork and each restore raise it; session, machine and handles are of one. What was issued to a life
    that a restore left behind is refused in the next one; the life itself, and its way out, are gone."""
    state, client, listeners = family.where.daemon.state, family.client, family.where.daemon.listeners
    assert listeners is not None

    def session(of: Sandbox) -> str:
        return str(of.shown["sessions"]["agent"])

    def generation(of: Sandbox) -> int:
        record = family.where.daemon.sandboxes.kept.record(of.id)
        assert record is not None
        handles = {each.claims.generation for each in state.handles(session(of))}
        assert handles == {record.generation} == {state.session(session(of)).generation}
        return record.generation

    born = generation(family.parent)
    (one,) = await client.fork(family.parent.id)
    try:
        assert generation(one) == born + 1
        assert generation(family.parent) == born
        await one.snapshot("start")
        first, first_key = session(one), await key_in(one)
        socket = Path((listeners.endpoint(first) or "").removeprefix("unix://"))
        assert socket.is_socket()
        await one.restore("start")
        assert generation(one) == born + 2
        assert state.status(first) is Status.ENDED and not socket.exists()
        second, second_key = session(one), await key_in(one)
        assert await asked_with(one, first_key) == (200, "")  # its processes of before hold that string
        assert await asked_with(one, second_key) == (200, "")
        await one.restore("start")  # beside the second life, not after it
        assert generation(one) == born + 3
        assert state.status(second) is Status.ENDED
        assert await asked_with(one, second_key) == (401, "handle_stolen")
        assert await asked_with(one, first_key) == (200, "")
        with pytest.raises(ControlError) as refused:
            await asyncio.to_thread(family.where.control().rebind, session(one))
        assert refused.value.reason == "bad_value"
        assert await asked_with(one, first_key) == (200, "")
    finally:
        await one.kill()


async def test_a_clone_of_a_clone_is_somebody_of_its_own_as_well(family: Family) -> None:
    """The string of the first of them means its own grant there; its own is stolen goods with its parent."""
    two = family.clones[1]
    (grandchild,) = await family.client.fork(two.id)
    try:
        assert (await done(grandchild, "grandchild"))["said"] == [200, ""]
        last = family.where.daemon.decisions()[-1]
        session = grandchild.shown["sessions"]["agent"]
        assert (last["session"], last["handle_of"]) == (session, family.parent.shown["sessions"]["agent"])
        assert await asked_with(grandchild, await key_in(two)) == (200, "")
        last = family.where.daemon.decisions()[-1]
        assert (last["session"], last["handle_of"]) == (session, two.shown["sessions"]["agent"])
        assert await asked_with(two, await key_in(grandchild)) == (401, "handle_stolen")
    finally:
        await grandchild.kill()


async def test_a_request_that_is_half_sent_is_sent_once_by_whoever_began_it(family: Family) -> None:
    """The parent's goes on where it was. The copy's connection is torn: what it has of it goes nowhere."""
    parent = family.parent
    await parent.write_file(f"{HOME}/half.py", HALF.encode())
    before = len(family.where.daemon.decisions())
    async with await parent.start(["python3", f"{HOME}/half.py"], cwd=HOME):
        await until_there(parent, "half")
        (clone,) = await family.client.fork(parent.id)
        try:
            for each in (clone, parent):
                await each.write_file(f"{HOME}/go", b"")
            await asyncio.gather(*(until_there(each, "whole") for each in (clone, parent)))
            torn, whole = [await content(each, f"{HOME}/whole") for each in (clone, parent)]
        finally:
            await clone.kill()
    assert whole == b"200" and not torn.isdigit(), torn
    (decision,) = family.where.daemon.decisions()[before:]
    assert (decision["session"], decision["outcome"]) == (parent.shown["sessions"]["agent"], "inject")


async def until_there(sandbox: Sandbox, name: str) -> None:
    async with asyncio.timeout(SECONDS):
        while (await sandbox.run(["test", "-e", f"{HOME}/{name}"])).exit_code:
            await asyncio.sleep(0.1)


async def test_a_snapshot_holds_no_secret_and_brings_the_agent_back(family: Family) -> None:
    """Memory, devices, disk and all that is written beside them are searched for every secret; the search can
    find what is there. Restored, the sandbox is what it was then, with new sessions."""
    where, one = family.where, family.clones[0]
    assert (await done(one, "before"))["said"][0] == 200
    await one.snapshot("then")
    place = where.daemon.sandboxes.kept.place(one.id)
    found = await asyncio.to_thread(lambda: {*leaks_below(place, needles())})
    assert {leak.rpartition(": ")[2] for leak in found} == {"a handle"}  # strings travel: they are no secret
    session = one.shown["sessions"]["agent"]
    assert (await done(one, "after"))["said"][0] == 200
    await one.restore("then")
    assert one.shown["state"] == "running", one.shown
    assert one.shown["sessions"]["agent"] != session
    assert (await one.run(["ls", HOME])).stdout.split() == [b"agent.py", b"done-before", b"task"]
    assert (await done(one, "again"))["said"][0] == 200
    last = where.daemon.decisions()[-1]
    assert last["handle_of"] == family.parent.shown["sessions"]["agent"]  # the string of the beginning
    (shown,) = await one.snapshots()
    assert (shown["name"], shown["generation"]) == ("then", 3)
    await one.remove_snapshot("then")
    assert await one.snapshots() == []
