"""I5, small enough for every run; `python -m tests.bench.revocation` does it with 128 loops and streams."""

import asyncio
from pathlib import Path

import pytest

from tests.bench.revocation import revocations
from tests.daemon import Sandbox, TestDaemon
from tests.planes.wire import tunnel

BOUND = 250.0
"""Milliseconds."""


async def test_a_revoked_session_moves_no_byte_250_ms_after_the_answer(tmp_path: Path) -> None:
    """With 8 closed loops and 10 open streams beside it, up and down alike, each of five times."""
    took = await revocations(tmp_path, count=5, sessions=2, loops=4, streams=5)
    assert len(took) == 5
    assert max(felt.after_the_answer for felt in took) < BOUND


@pytest.mark.parametrize(
    "lost", ["coatcheck.planes.mitm.MitmPlane.abort_sessions", "coatcheck.call.Call.permitted"]
)
async def test_each_of_the_two_ways_ends_a_stream_by_itself(
    daemon: TestDaemon, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The revoker's call, and the look at every chunk: with one of them gone the other still ends it."""
    async with tunnel(daemon, sandbox) as raw:
        await raw.send(
            f"GET /sse?n=200&gap_ms=20 HTTP/1.1\r\nHost: api.openai.com\r\n"
            f"Authorization: Bearer {sandbox.handles['openai']}\r\n\r\n".encode()
        )
        assert await raw.status() == 200
        monkeypatch.setattr(lost, lambda *_: None)
        await asyncio.to_thread(daemon.state.revoke, sandbox.session.id, "test")
        async with asyncio.timeout(1):
            assert not (await raw.rest()).endswith(b"0\r\n\r\n")
