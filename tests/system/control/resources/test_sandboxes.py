"""Who may do what with whose sandbox, and what stays between a caller and the inside."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coatcheck.client.control import ControlError
from coatcheck.client.sandbox import Sandbox
from tests.sandboxes import CALLERS, SECONDS, WANTED, Place, place, sandbox_in, write_grants
from tests.upstreams import UpstreamTls

pytestmark = [pytest.mark.needs_debian("bwrap", "runc"), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def where(all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[Place]:
    async with place(all_output, upstream_tls, max_sandboxes=3, max_sandboxes_per_caller=2) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(where: Place) -> AsyncIterator[Sandbox]:
    async with sandbox_in(where, "launcher") as made:
        yield made


async def refused(work: Any) -> str:
    with pytest.raises(ControlError) as problem:
        await work
    return problem.value.reason


async def test_another_s_sandbox_is_as_unknown_as_none(where: Place, sandbox: Sandbox) -> None:
    """To launchers beside its own, and to operators of other tenants: every operation says the same."""
    for caller in ("other", "elsewhere"):
        control = where.control(caller)
        asked = (control.sandbox, control.kill_sandbox)
        for ask in asked:
            assert await refused(asyncio.to_thread(ask, sandbox.id)) == "unknown_sandbox"
        assert await asyncio.to_thread(control.sandboxes) == []
    async with where.client("other") as client:
        theirs = Sandbox(client, sandbox.shown)
        assert await refused(theirs.run(["true"])) == "unknown_sandbox"
        assert await refused(theirs.write_file("/home/agent/x", b"x")) == "unknown_sandbox"
        assert await refused(theirs.pause()) == "unknown_sandbox"
        async with client.request("GET", theirs.http(80)) as answer:
            assert answer.status == 404
    assert (await sandbox.run(["true"])).exit_code == 0


async def test_an_operator_sees_and_ends_but_does_not_use(where: Place, sandbox: Sandbox) -> None:
    """What runs in it is its launcher's business; that it runs is the operator's."""
    control = where.control("operator")
    assert (await asyncio.to_thread(control.sandbox, sandbox.id))["tenant"] == "acme"
    async with where.client("operator") as client:
        assert await refused(Sandbox(client, sandbox.shown).run(["true"])) == "forbidden"
    assert await refused(asyncio.to_thread(control.report_sandbox, sandbox.id, "running")) == "forbidden"
    async with sandbox_in(where, "launcher") as another:
        ended = await asyncio.to_thread(control.kill_sandbox, another.id, "too loud")
        assert (ended["state"], ended["detail"]) == ("ended", "ended by operator: too loud")


async def test_the_isolation_that_counts_is_the_measured_one(where: Place) -> None:
    """A grant for hardware makes no namespace, and nobody can say that it is another."""
    async with where.client("hardware-only") as client:
        with pytest.raises(ControlError, match=r"isolation namespace.*kernel") as problem:
            await client.create(**WANTED)
        assert problem.value.reason == "forbidden"
        assert await refused(client.create(**{**WANTED, "isolation": "hardware"})) == "malformed"


async def test_there_are_only_so_many(where: Place, sandbox: Sandbox) -> None:
    """For one caller and for all; and one that ended makes room."""
    async with sandbox_in(where, "launcher"), where.client("launcher") as client:
        assert await refused(client.create(**WANTED)) == "too_many_sandboxes"
        async with sandbox_in(where, "other"), where.client() as owner:
            assert await refused(owner.create(**WANTED)) == "too_many_sandboxes"
    async with sandbox_in(where, "launcher"):
        pass


async def test_a_grant_that_is_taken_away_ends_its_sandboxes(where: Place) -> None:
    """At the next renewal, though the supervisor itself may do anything."""
    async with where.client("other") as client:
        made = await client.create(**WANTED, lease_seconds=9.0)
        less = {name: entry for name, entry in CALLERS.items() if name != "other"}
        write_grants(where.grants, less)
        assert where.daemon.control is not None and where.daemon.control.reload() is None
        try:
            until = time.monotonic() + SECONDS
            while (shown := where.control().sandbox(made.id))["state"] != "ended":
                assert time.monotonic() < until
                await asyncio.sleep(0.05)
            assert shown["ending"] == "session_over" and "no caller other" in shown["detail"]
        finally:
            write_grants(where.grants)
            where.daemon.control.reload()
    sessions = {each["id"]: each["status"] for each in where.control().list()}
    assert [sessions[each] for each in shown["sessions"].values()] == ["ended"]


async def test_its_life_is_in_the_audit_log(where: Place) -> None:
    """Made, running, ended: by whom, as what, why."""
    async with sandbox_in(where, "launcher") as made:
        pass
    records = [each for each in where.daemon.records() if each["type"] == "sandbox"]
    mine = [each for each in records if each["sandbox"] == made.id]
    assert [each["change"] for each in mine] == ["created", "running", "ended"]
    assert {(each["caller"], each["isolation"], each["tenant"]) for each in mine} == {
        ("launcher", "namespace", "acme")
    }
    assert mine[-1]["ending"] == "killed"


async def test_a_session_that_is_revoked_takes_its_sandbox_with_it(where: Place) -> None:
    """At once: not at the next renewal."""
    async with sandbox_in(where, "launcher") as made:
        async with await made.start(["sleep", "60"]) as process:
            (session,) = made.shown["sessions"].values()
            await asyncio.to_thread(where.control("operator").revoke, session)
            with pytest.raises(ControlError, match="session"):
                await asyncio.wait_for(process.wait(), SECONDS)
        assert (await made.refresh())["ending"] == "session_over"
