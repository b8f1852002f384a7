"""Hybrid and shared sandboxes: two more policies of one launcher, real guests."""

import asyncio

import pytest

from coatcheck.client.sandbox import SandboxClient
from tests.sandboxes import Place
from tests.system.e2e.counting import (
    changes,
    client,
    counted,
    counting,
    made,
    state,
    until,
    where,
)

__all__ = ["client", "where"]

pytestmark = [
    pytest.mark.needs_debian("qemu-system-x86_64", "mke2fs"),
    pytest.mark.asyncio(loop_scope="module"),
]


async def test_a_hybrid_one_sleeps_between_its_bursts(where: Place, client: SandboxClient) -> None:
    """It takes no process while it sleeps; its program goes on where it was, with new sessions, and when that
    is done it sleeps again."""
    sandbox = await made(client, "hybrid", idle_seconds=1)
    program, far = await counting(sandbox)
    session = sandbox.shown["sessions"]["agent"]
    await until(lambda: where.daemon.sandboxes.is_down(sandbox.id))
    assert state(where, sandbox) == "sleeping" and not where.directory(sandbox.id).exists()
    again, further = await counted(sandbox)  # using it wakes it
    assert again == program and further >= far
    assert (await sandbox.refresh())["sessions"]["agent"] != session
    await until(lambda: where.daemon.sandboxes.is_down(sandbox.id))
    assert [each for each in changes(where, sandbox) if each in ("sleeping", "woke")][:2] == [
        "sleeping",
        "woke",
    ]
    await sandbox.kill()
    assert not where.daemon.sandboxes.kept.place(sandbox.id).exists()


async def test_a_shared_one_keeps_its_agents_apart_and_outlives_the_end_of_one(
    where: Place, client: SandboxClient
) -> None:
    """Each call is attributed to the session of its maker; one's revocation takes nothing from the
    other, and the last one's is the end of it."""
    people = [{"name": "agent"}, {"name": "tool"}]
    sandbox = await made(client, "shared", identities=people)
    sessions = sandbox.shown["sessions"]

    async def ask(identity: str) -> str:
        curl = 'curl -s -o /dev/null -w "%{http_code}" -H "Authorization: Bearer $OPENAI_API_KEY"'
        call = ["sh", "-c", f"{curl} https://api.openai.com/v1/models"]
        return (await sandbox.run(call, identity=identity)).stdout.decode()

    for identity in ("agent", "tool"):
        assert await ask(identity) == "200"
        assert where.daemon.decisions()[-1]["session"] == sessions[identity]
    await asyncio.to_thread(where.control().revoke, sessions["tool"])
    await until(lambda: "identity_over" in changes(where, sandbox))
    assert await ask("tool") != "200"
    assert await ask("agent") == "200"
    await asyncio.to_thread(where.control().report_sandbox, sandbox.id, "running")  # its lease goes on
    assert state(where, sandbox) == "running"
    await asyncio.to_thread(where.control().revoke, sessions["agent"])
    await until(lambda: state(where, sandbox) == "ended")
    assert (await sandbox.refresh())["ending"] == "session_over"
    await sandbox.kill()
