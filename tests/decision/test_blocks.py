"""What was decoded leaves in pieces that say nothing of how it was coded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision import blocks
from coatcheck.decision.blocks import BLOCK, Blocks


def cut(body: bytes, sizes: list[int], media: str) -> list[bytes]:
    """The pieces in which `body` leaves that came in pieces of such sizes."""
    made, out, at = Blocks(media), [], 0
    for size in [*sizes, len(body)]:
        out += made.put(body[at : at + size])
        at += size
    return out + made.rest()


@pytest.mark.parametrize("media", ["text/html", "text/event-stream; charset=utf-8"])
@given(body=st.text("ab\n", max_size=100), sizes=st.lists(st.integers(0, 30), max_size=8))
def test_how_it_comes_does_not_show_in_how_it_leaves(media: str, body: str, sizes: list[int]) -> None:
    """Sizes and cuts are those of the decoded bytes alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", 16)
        out = cut(body.encode(), sizes, media)
        assert out == cut(body.encode(), [], media)
    assert b"".join(out) == body.encode() and all(out)
    if media == "text/html":
        assert [len(piece) for piece in out[:-1]] == [16] * (len(out) - 1)


def test_a_page_leaves_at_its_end_and_an_event_with_its_line() -> None:
    """The first chunk of a page told how much of it had been decoded; an event waits for none."""
    page, stream = Blocks("text/html"), Blocks("Text/Event-Stream")
    assert page.put(b"<p>\n" * 1000) == [] and page.rest() == [b"<p>\n" * 1000]
    assert stream.put(b"data: 1\ndata: 2\n\nda") == [b"data: 1\n", b"data: 2\n", b"\n"]
    assert stream.put(b"ta: 3\n") == [b"data: 3\n"] and stream.rest() == []


def test_a_long_body_leaves_in_blocks() -> None:
    """A download does not wait for its end, nor does it fill the memory."""
    made = Blocks("application/zip")
    assert [len(piece) for piece in made.put(b"x" * (2 * BLOCK + 5))] == [BLOCK, BLOCK]
    assert made.rest() == [b"x" * 5]
