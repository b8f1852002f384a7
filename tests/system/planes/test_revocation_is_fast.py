"""I5, small enough for every run; `python -m tests.bench.revocation` does it with 128 loops and streams."""

import asyncio
from pathlib import Path

import pytest

from tests.bench.revocation import revocations
from tests.daemon import Sandbox, TestDaemon
from tests.planes.wire import tunnel

BOUND = 250.0
"""Milliseconds."""
ATTEMPTS = 3
"""A machine that runs three suites at once may stand still for longer than that; not each time."""


async def test_what_was_revoked_moves_no_byte_250_ms_after_the_answer(tmp_path: Path) -> None:
    """A handle, a session, a credential, everything: with 8 closed loops and 10 open streams, up and down
    alike, each time."""
    count = {"session": 3, "handle": 3, "credential": 2, "everything": 2}
    slowest = 0.0
    for attempt in range(ATTEMPTS):
        place = tmp_path / str(attempt)
        place.mkdir()
        took = await revocations(place, count=count, sessions=2, loops=4, streams=5)
        assert {kind: len(felt) for kind, felt in took.items()} == count | {"credential": 4, "everything": 4}
        slowest = max(each.after_the_answer for felt in took.values() for each in felt)
        if slowest < BOUND:
            return
    pytest.fail(f"{slowest:.0f} ms after the answer, {ATTEMPTS} times in a row")


@pytest.mark.parametrize(
    "lost", ["coatcheck.planes.mitm.plane.MitmPlane.abort_sessions", "coatcheck.request.call.Call.permitted"]
)
async def test_each_of_the_two_ways_ends_a_stream_by_itself(
    daemon: TestDaemon, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The revoker's call, and the look at every chunk: with one of them gone the other still ends it."""
    async with tunnel(daemon, sandbox) as raw:
        await raw.send(
            f"GET /sse?n=5000&gap_ms=20 HTTP/1.1\r\nHost: api.openai.com\r\n"
            f"Authorization: Bearer {sandbox.handles['openai']}\r\n\r\n".encode()
        )
        assert await raw.status() == 200
        monkeypatch.setattr(lost, lambda *_: None)
        await asyncio.to_thread(daemon.state.revoke, sandbox.session.id, "test")
        async with asyncio.timeout(20):
            assert not (await raw.rest()).endswith(b"0\r\n\r\n")
