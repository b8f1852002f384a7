"""A running agent is forked three times: each copy goes on with the string that it holds, as somebody new.

One guest for the whole module: it boots once, and is copied.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coatcheck.client.control import ControlError
from coatcheck.client.sandbox import Process, Sandbox, SandboxClient
from coatcheck.state import Status
from tests.known_secrets import needles
from tests.sandboxes import WANTED, Place, image_cache, place
from tests.secret_grep import leaks_below
from tests.upstreams import UpstreamTls

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOME = "/home/agent"
SECONDS = 120.0
AGENT = """
import json, os, time, urllib.request
key = os.environ["OPENAI_API_KEY"]
done = ""
print("ready", flush=True)
while True:
    try:
        task = open("task").read()
    except OSError:
        task = ""
    if task == done:
        time.sleep(0.2)
        continue
    first = os.urandom(16).hex() + " " + open("/proc/sys/kernel/random/uuid").read().strip()
    done = task
    body = {"model": "m", "messages": [{"role": "user", "content": task}]}
    asked = urllib.request.Request(
        "https://api.openai.com/v1/chat/completions", json.dumps(body).encode(),
        {"Authorization": "Bearer " + key, "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            said = [answer.status, ""]
    except urllib.error.HTTPError as error:
        said = [error.code, error.headers.get("Coatcheck-Reason")]
    with open("done.new", "w") as file:
        json.dump({"task": task, "said": said, "first": first, "pid": os.getpid()}, file)
    os.rename("done.new", "done-" + task)
"""
"""A loop as an agent's: it holds its key in memory, waits for a task, asks the model, writes what it got."""

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


@dataclass
class Family:
    """One parent with a running agent, and three clones of it."""

    where: Place
    client: SandboxClient
    parent: Sandbox
    agent: Process
    clones: Sequence[Sandbox]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def family(all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[Family]:
    image_cache()
    async with place(all_output, upstream_tls) as where, where.client() as client:
        wanted: dict[str, Any] = {**WANTED, "backend": "microvm", "memory_mib": 192, "disk_mib": 64}
        async with await client.create(**wanted) as parent:
            await parent.write_file(f"{HOME}/agent.py", AGENT.encode())
            async with await parent.start(["python3", f"{HOME}/agent.py"], cwd=HOME) as agent:
                async for output in agent:
                    assert b"ready" in output.data
                    break
                clones = await client.fork(parent.id, 3)
                yield Family(where, client, parent, agent, clones)
                for clone in clones:
                    await clone.kill()


async def done(sandbox: Sandbox, task: str) -> dict[str, Any]:
    """What the agent inside made of a task."""
    await sandbox.write_file(f"{HOME}/task", task.encode())
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return dict(json.loads(await content(sandbox, f"{HOME}/done-{task}")))
            except ControlError as error:
                if error.reason != "file_not_found":
                    raise
                await asyncio.sleep(0.1)


async def content(sandbox: Sandbox, path: str) -> bytes:
    async with sandbox.read_file(path) as chunks:
        return b"".join([chunk async for chunk in chunks])


async def key_in(sandbox: Sandbox) -> str:
    """What a new command finds in its environment there."""
    return (await sandbox.run(["printenv", "OPENAI_API_KEY"])).stdout.decode().strip()


async def asked_with(sandbox: Sandbox, key: str) -> tuple[int, str]:
    """The status, and Coatcheck's reason, of a model call from `sandbox` with that key."""
    call = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code} %header{coatcheck-reason}"]
    call += ["-H", f"Authorization: Bearer {key}", "https://api.openai.com/v1/models"]
    status, _, reason = (await sandbox.run(call)).stdout.decode().partition(" ")
    return int(status), reason


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
    assert (await one.run(["ls", HOME])).stdout.split() == [
        b"agent.py",
        *sorted([b"done-before", b"done-task-1", b"task"]),
    ]
    assert (await done(one, "again"))["said"][0] == 200
    last = where.daemon.decisions()[-1]
    assert last["handle_of"] == family.parent.shown["sessions"]["agent"]  # the string of the beginning
    (shown,) = await one.snapshots()
    assert (shown["name"], shown["generation"]) == ("then", 3)
    await one.remove_snapshot("then")
    assert await one.snapshots() == []
