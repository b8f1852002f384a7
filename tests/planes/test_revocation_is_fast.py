"""I5, small enough for every run; `python -m tests.bench.revocation` does it with 128 loops and streams."""

from pathlib import Path

from tests.bench.revocation import revocations

BOUND = 250.0
"""Milliseconds."""


async def test_a_revoked_session_moves_no_byte_250_ms_after_the_answer(tmp_path: Path) -> None:
    """With 8 closed loops and 10 open streams beside it, up and down alike, each of five times."""
    took = await revocations(tmp_path, count=5, sessions=2, loops=4, streams=5)
    assert len(took) == 5
    assert max(felt.after_the_answer for felt in took) < BOUND
