"""Audit log and state on tiny disks, filled to the last byte while the daemon works, and emptied again."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from coatcheck.telemetry.audit.checkpoint import load_public_key
from coatcheck.telemetry.audit.verify import verify
from tests.exhaustive.faults.daemon_and_origin import daemon_and_origin
from tests.exhaustive.faults.small_disks import SmallDisks, small_disks
from tests.planes.raw_origin import RawOrigin
from tests.system.e2e.daemon_process import DaemonProcess, OpenedSession
from tests.system.e2e.story import until
from tests.upstreams import UpstreamTls


@dataclass
class World:
    daemon: DaemonProcess
    disks: SmallDisks
    origin: RawOrigin

    @property
    def audit(self) -> Path:
        return self.daemon.directory / "state/audit"

    @property
    def sessions(self) -> Path:
        return self.daemon.directory / "state/sessions"

    async def missing(self) -> list[str]:
        missing: list[str] = (await self.daemon.control("GET", "/readyz")).json()["missing"]
        return missing

    async def open(self) -> httpx.Response:
        return await self.daemon.control(
            "POST", "/v1/sessions", tenant="acme", subject="more", policy="default", listen="none"
        )

    async def do(self, session: OpenedSession, what: str) -> tuple[int, str]:
        """Renew or revoke: status and reason."""
        answer = await self.daemon.control("POST", f"/v1/sessions/{session.id}/{what}")
        return answer.status_code, answer.json().get("error", {}).get("reason", "")

    async def gone(self, session: OpenedSession) -> None:
        """Refused at once, and its listener goes a moment later."""
        forwarded = self.forwarded()

        async def ask() -> int:
            try:
                return (await session.ask())[0]
            except AssertionError:
                return 503  # already for its CONNECT

        await until(ask, lambda status: status == 0)
        assert self.forwarded() == forwarded

    async def live(self) -> set[str]:
        listed = (await self.daemon.control("GET", "/v1/sessions?status=live")).json()
        return {session["id"] for session in listed["sessions"]}

    def records(self) -> list[dict[str, Any]]:
        lines = self.disks.inside(self.daemon.audit).read_text().splitlines()
        return [json.loads(line) for line in lines]

    def injected(self) -> int:
        return len([record for record in self.records() if record.get("outcome") == "inject"])

    def forwarded(self) -> int:
        return len([head for head in self.origin.heads if head])


@pytest.fixture
async def world(
    place: Path, tmp_path: Path, upstream_tls: UpstreamTls, real_keys: dict[str, str]
) -> AsyncIterator[World]:
    state = place / "state"
    state.mkdir(mode=0o700)
    with small_disks([state / "audit", state / "sessions"]) as disks:
        async with daemon_and_origin(
            place, tmp_path / "secrets", upstream_tls, real_keys["openai"], wrapper=disks.wrapper
        ) as (daemon, origin):
            yield World(daemon, disks, origin)


async def test_both_disks(world: World) -> None:
    """First the log's, then the state's; then the daemon dies."""
    session, doomed, other = [await world.daemon.open_session("unix") for _ in range(3)]
    assert [await each.ask() for each in (session, doomed, other)] == [(200, "")] * 3
    await the_log_is_full(world, session, doomed)
    await the_state_is_full(world, session, other)
    await a_daemon_starts_again(world, session, (doomed, other))


async def the_log_is_full(world: World, session: OpenedSession, doomed: OpenedSession) -> None:
    """What cannot be recorded does not leave, is not given, and is taken all the same."""
    world.disks.fill(world.audit)
    refused = await until(session.ask, lambda seen: seen[0] != 200)
    assert refused == (503, "audit_unavailable")
    forwarded = world.forwarded()
    assert await session.ask() == (503, "audit_unavailable")
    assert world.forwarded() == forwarded == world.injected()

    async def missing_after_a_request() -> list[str]:
        assert await session.ask() == (503, "audit_unavailable")
        return await world.missing()

    # Not at once: a shorter record may fit where the request's did not, and then the log works, so far.
    assert await until(missing_after_a_request, bool) == ["audit log"]
    failures = (await world.daemon.control("GET", "/metrics")).text
    assert "\ncoatcheck_audit_failures_total 0.0" not in failures

    live = await world.live()
    answer = await world.open()
    assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "not_recorded")
    assert await world.live() == live, "a session that nobody was given is live"
    assert await world.do(session, "renew") == (200, "")
    assert await world.do(doomed, "revoke") == (503, "not_recorded")
    await world.gone(doomed)

    world.disks.free(world.audit)
    await until(world.missing, lambda missing: missing == [])
    assert await session.ask() == (200, "")
    assert (await world.open()).status_code == 201
    assert sum(record.get("lost", 0) for record in world.records()) >= 4, "the gap is not told"
    assert world.forwarded() == world.injected()


async def the_state_is_full(world: World, session: OpenedSession, doomed: OpenedSession) -> None:
    """Requests go on, policies change; nothing is given; what is taken is, and on disk when it can."""
    world.disks.fill(world.sessions)

    async def opened() -> tuple[int, str]:
        answer = await world.open()
        return answer.status_code, answer.json().get("error", {}).get("reason", "")

    assert await until(opened, lambda seen: seen[0] != 201) == (503, "not_durable")
    assert await world.do(doomed, "revoke") == (503, "not_durable")
    await world.gone(doomed)
    assert await session.ask() == (200, "") and await world.missing() == []

    before = world.daemon.policy.read_text()
    world.daemon.policy.write_text(before + "    paths: [/v1/chat/completions]\n")
    await until(session.ask, lambda seen: seen == (403, "path_not_allowed"))
    world.daemon.policy.write_text(before)
    await until(session.ask, lambda seen: seen == (200, ""))

    world.disks.free(world.sessions)

    async def owed() -> tuple[int, str]:
        return await world.do(doomed, "revoke")

    assert await until(owed, lambda seen: seen[0] != 503) == (200, "")
    assert await world.do(session, "renew") == (200, "")


async def a_daemon_starts_again(
    world: World, session: OpenedSession, dead: tuple[OpenedSession, ...]
) -> None:
    """What was taken while the disks were full is on them: the dead stay dead after `kill -9`."""
    await world.daemon.kill()
    await world.daemon.start()
    assert await session.ask() == (200, "")
    assert [await each.ask() for each in dead] == [(0, "")] * len(dead)
    key = load_public_key(world.daemon.directory / "state/checkpoint-key.pem.pub")
    report = verify([world.disks.inside(world.daemon.audit)], key)
    assert report.ok, report
    assert world.forwarded() <= world.injected()  # a policy may change between record and first byte
