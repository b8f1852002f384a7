"""Bodies: codings undone and secrets taken out, whatever the split and the coding."""

import base64
import gzip
import zlib
from collections.abc import Callable
from itertools import pairwise

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.body_scrubber import BodyScrubber
from coatcheck.decision.content_coding import CodingRefused, Expansion
from coatcheck.decision.scrub import Patterns, scrub_bytes

SECRET = "sk-proj-0123456789abcdefABCDEF/+"
PATTERNS = Patterns.of([SECRET])
ENCODERS: dict[tuple[str, ...], Callable[[bytes], bytes]] = {
    (): bytes,
    ("gzip",): gzip.compress,
    ("deflate",): zlib.compress,
    ("br",): brotli.compress,
    ("zstd",): zstandard.compress,
    ("gzip", "br"): lambda body: brotli.compress(gzip.compress(body)),
}
echoes = st.sampled_from(
    [SECRET.encode(), base64.b64encode(b"user:" + SECRET.encode()), SECRET[:20].encode()]
)
bodies = st.lists(st.one_of(echoes, st.binary(max_size=100), st.just(b"data: x\n\n")), max_size=10).map(
    b"".join
)


@pytest.mark.parametrize("codings", ENCODERS, ids=lambda codings: "+".join(codings) or "identity")
@given(body=bodies, cuts=st.lists(st.integers(0, 99999), max_size=20))
def test_any_split_of_any_coding_gives_the_scrubbed_body(
    codings: tuple[str, ...], body: bytes, cuts: list[int]
) -> None:
    """What the sandbox gets depends on the body only: not on chunks, not on the coding."""
    sent = ENCODERS[codings](body)
    scrubber = BodyScrubber(PATTERNS, codings)
    out: list[bytes] = []
    for a, b in pairwise([0, *sorted(cut % (len(sent) + 1) for cut in cuts), len(sent)]):
        out += scrubber.feed(sent[a:b])
    out += scrubber.finish()
    clean, runs = scrub_bytes(PATTERNS, body)
    assert (b"".join(out), scrubber.take_runs()) == (clean, runs)
    assert scrubber.hits == len(runs)
    assert b"" not in out
    assert not PATTERNS.find(b"".join(out))


def test_an_event_with_an_echo_leaves_scrubbed_and_at_once() -> None:
    """Through gzip, each flushed event arrives whole, without the secret, before the next is sent."""
    deflate, scrubber = zlib.compressobj(wbits=31), BodyScrubber(PATTERNS, ("gzip",))
    for event in (b"data: one\n\n", b"data: " + SECRET.encode() + b"\n\n", b"data: sk-proj-01\n\n"):
        sent = deflate.compress(event) + deflate.flush(zlib.Z_SYNC_FLUSH)
        assert b"".join(scrubber.feed(sent)) == event.replace(SECRET.encode(), b"*" * len(SECRET))


def test_nothing_leaves_after_a_refusal() -> None:
    """A damaged body ends in refusals only: what was held back stays."""
    scrubber = BodyScrubber(PATTERNS, ("gzip",))
    with pytest.raises(CodingRefused):
        scrubber.feed(b"this is no gzip")
    with pytest.raises(CodingRefused):
        scrubber.feed(gzip.compress(b"x"))
    with pytest.raises(CodingRefused):
        scrubber.finish()


def test_a_truncated_body_has_no_clean_end() -> None:
    """The end of a body that was cut short is refused, so that the message is aborted."""
    scrubber = BodyScrubber(PATTERNS, ("gzip",))
    scrubber.feed(gzip.compress(b"a body" * 100)[:-3])
    with pytest.raises(CodingRefused):
        scrubber.finish()


def test_the_expansion_that_a_plane_allows_is_the_bound() -> None:
    """A bomb is refused at the plane's bound, not at the default of 8 MiB."""
    body = gzip.compress(bytes(100_000))
    assert BodyScrubber(PATTERNS, ("gzip",)).feed(body)
    with pytest.raises(CodingRefused, match="expands too much"):
        BodyScrubber(PATTERNS, ("gzip",), Expansion(ratio=10, floor=1000)).feed(body)


def test_secrets_that_come_later_are_looked_for() -> None:
    """Of another request of the session, while the body streams."""
    scrubber, later = BodyScrubber(PATTERNS), "ghp_ZYXWVUTSRQponmlkjihgfe"
    out = scrubber.feed(b"a\n")
    scrubber.look_for(Patterns.of([SECRET, later]))
    out += scrubber.feed(f"{later} {SECRET}\n".encode()) + scrubber.finish()
    assert b"".join(out) == b"a\n" + b"*" * len(later) + b" " + b"*" * len(SECRET) + b"\n"
    assert scrubber.hits == 2


def test_an_empty_body_has_no_pieces() -> None:
    """A piece without bytes would end a chunked body."""
    for codings in ((), ("gzip",)):
        scrubber = BodyScrubber(PATTERNS, codings)
        assert scrubber.feed(b"") == scrubber.finish() == []


def test_a_message_in_an_envelope_leaves_whole() -> None:
    """gRPC: its receiver waits for all of it, and the next message may never come."""
    scrubber = BodyScrubber(PATTERNS, content_type="application/grpc")
    for text in (b"a name", SECRET.encode(), b"sk-proj-01"):
        message = b"\0" + len(text).to_bytes(4, "big") + text
        out = b"".join(scrubber.feed(message[:3])) + b"".join(scrubber.feed(message[3:]))
        assert out == message.replace(SECRET.encode(), b"*" * len(SECRET))


def test_an_echo_over_chunks_within_an_envelope_is_masked() -> None:
    """Only at a message's end everything leaves, wherever chunks end."""
    scrubber = BodyScrubber(PATTERNS, content_type="application/grpc+proto")
    body = b"\0" + len(SECRET).to_bytes(4, "big") + SECRET.encode()
    out = b"".join(piece for byte in body for piece in scrubber.feed(bytes([byte])))
    assert out == body[:5] + b"*" * len(SECRET)
